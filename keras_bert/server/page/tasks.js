// For each task: the fields of its form, the request's instances (or its path and body), and the
// display of its rows.

import { bars, element, heading, highlight, large, legend, note, warning } from "./parts.js";

const MASK = "[MASK]";
const HUES = [212, 145, 28, 285, 340, 180, 75, 255];
const ANSWERS = 3; // shown before "Show more"
// The types of CoNLL-2003 and OntoNotes.
const TYPES = {
  PER: "person",
  PERSON: "person",
  LOC: "location",
  ORG: "organization",
  GPE: "country, city or state",
  MISC: "other name",
  NORP: "nationality, religious or political group",
  FAC: "building, road or bridge",
  PRODUCT: "product",
  EVENT: "event",
  WORK_OF_ART: "title of a work",
  LAW: "law",
  LANGUAGE: "language",
  DATE: "date or period",
  TIME: "time of day",
  PERCENT: "percentage",
  MONEY: "amount of money",
  QUANTITY: "measured quantity",
  ORDINAL: "ordinal number",
  CARDINAL: "number",
};

const field = (name, label, rows, sample, missing) => ({ name, label, rows, sample, missing });

// A checkpoint without label names numbers its labels: LABEL_0, LABEL_1, ...
const numberOf = (label) => /^LABEL_(\d+)$/.exec(label)?.[1];
const className = (label) => (numberOf(label) ? `Class ${numberOf(label)}` : label);
const unnamed = (model) => model.labels?.length && model.labels.every(numberOf);

// A list with the notice that the end of a text was not read, or an empty list.
function truncation(truncated, has, limit, end = "The end was not read.") {
  if (!truncated) return [];
  return [warning(`${has} more ${limit ? `than ${limit} tokens` : "tokens than fit"}. ${end}`)];
}

function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  return dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);
}

export const TASKS = {
  classification: {
    title: "Text classification",
    fields: (model) =>
      model.pair
        ? [
            field(
              "text",
              "First text",
              3,
              "The company said its profit rose in the third quarter.",
              "Enter the first text.",
            ),
            field(
              "text_pair",
              "Second text",
              3,
              "Profit went up, the company reported.",
              "Enter the second text.",
            ),
          ]
        : [field("text", "Text", 4, "A warm, funny and beautifully acted film.", "Enter a text.")],
    instances: (values) => [values],
    show: ([row], values, model) => {
      const has = model.pair ? "The two texts together have" : "The text has";
      const notice = truncation(row.truncated, has, model.max_seq_length);
      // Exports without `truncated` have a single output, whose value has no name.
      const score = typeof row === "number" ? row : row.score;
      if (score !== undefined) return [...notice, heading("Score"), large(String(score))];
      const rows = row.classes.map(({ label, score }) => ({
        name: className(label),
        fraction: score,
      }));
      const predicted = (row.labels ?? [row.label]).filter((label) => label !== "").map(className);
      return [
        ...notice,
        heading(row.labels ? "Labels" : "Label"),
        large(predicted.length ? predicted.join(", ") : "None"),
        heading("Probabilities"),
        bars(rows),
        ...(unnamed(model) ? [note("The model does not name its classes; it numbers them.")] : []),
      ];
    },
  },

  ranking: {
    title: "Ranking",
    fields: () => [
      field("query", "Query", 2, "How do I reset my password?", "Enter a query."),
      field(
        "texts",
        "Texts, one per line",
        6,
        "The office is open from 9 to 5.\nTo choose a new password, follow the link in our email." +
          "\nPasswords have at least 12 characters.",
        "Enter the texts, one per line.",
      ),
    ],
    // Each query of the training pairs, with the texts of all of them.
    examples: (pairs) => {
      const texts = pairs.map(([, text]) => text.replace(/\s+/g, " ")).join("\n");
      return pairs.map(([query]) => [query, texts]);
    },
    request: ({ query, texts }, { model_name: model }) => {
      const lines = texts.split("\n").filter((line) => line.trim());
      return ["rerank", { model, query, texts: lines, return_text: true }];
    },
    show: (ranks, values, model, truncated) => [
      ...truncation(
        truncated,
        `${truncated} of ${ranks.length} texts ${truncated > 1 ? "have" : "has"}, with the query,`,
        model.max_seq_length,
        "Their ends were not read.",
      ),
      heading("Texts by relevance"),
      bars(
        ranks.map(({ text: name, score: fraction }) => {
          return { name, fraction, number: fraction.toFixed(3) };
        }),
      ),
      note(`The most relevant text is number ${ranks[0].index + 1} of ${ranks.length}.`),
    ],
  },

  question_answering: {
    title: "Question answering",
    fields: () => [
      field("question", "Question", 2, "When was the bridge opened?", "Enter a question."),
      field(
        "context",
        "Context",
        8,
        "The stone bridge was begun in 1845. After two floods had carried parts of it away, it " +
          "was opened to carriages on 3 May 1851, and to the railway ten years later.",
        "Enter a context: the text that contains the answer.",
      ),
    ],
    instances: (values) => [values],
    show: ([row], values, model) => {
      const best = row.nbest_answers
        .map((answer, index) => ({
          answer,
          start: row.nbest_starts[index],
          end: row.nbest_ends[index],
          fraction: row.nbest_probabilities[index],
        }))
        .filter(({ answer, fraction }) => answer !== "" || fraction > 0);
      const context = element("div");
      const choose = ({ start, end }) => {
        context.replaceChildren(highlight(values.context, start < 0 ? [] : [{ start, end }]));
        context.querySelector("mark")?.scrollIntoView({ block: "nearest" });
        for (const button of buttons) {
          const pressed = button.dataset.span === `${start} ${end}`;
          button.setAttribute("aria-pressed", String(pressed));
        }
      };
      const buttons = best.map((choice) => {
        const text = choice.answer === "" ? "(no answer)" : choice.answer;
        const button = element("button", { type: "button", dir: "auto" }, text);
        button.dataset.span = `${choice.start} ${choice.end}`;
        button.addEventListener("click", () => choose(choice));
        return button;
      });
      choose(row);
      return [
        ...truncation(row.truncated, "The question has", model.max_query_length),
        heading("Answer"),
        large(row.answer === "" ? "No answer found in the context" : row.answer),
        context,
        heading("Most likely answers"),
        bars(
          best.map(({ fraction }, index) => ({ name: buttons[index], fraction })),
          ANSWERS,
        ),
      ];
    },
  },

  ner: {
    title: "Named entities",
    fields: () => [
      field(
        "text",
        "Text",
        6,
        "Marie Curie came from Warsaw to Paris and taught at the Sorbonne. In 1911 she went to " +
          "Stockholm for her second Nobel Prize.",
        "Enter a text.",
      ),
    ],
    instances: (values) => [values],
    show: ([row], values, model) => {
      // Some exports return tags, such as B-PER, or numbers as types.
      const typeOf = (type) => className(type.replace(/^[BIESLU]-/, ""));
      const spans = row.types.map((type, index) => ({
        type: typeOf(type),
        start: row.starts[index],
        end: row.ends[index],
        score: row.scores[index],
      }));
      const types = [...new Set(spans.map(({ type }) => type))].filter(Boolean).sort();
      const hues = new Map(types.map((type, index) => [type, HUES[index % HUES.length]]));
      const characters = Array.from(values.text);
      const shown = [heading("Entities"), highlight(values.text, spans, hues)];
      if (!spans.length) return [...shown, note("No entities found.")];
      const count = (type) => spans.filter((span) => span.type === type).length;
      const meanings = types.map((type) => {
        const meaning = TYPES[type.toUpperCase()];
        return [type, meaning ? `${meaning} (${count(type)})` : `(${count(type)})`];
      });
      if (meanings.length) shown.push(legend(meanings, hues));
      if (unnamed(model)) shown.push(note("The model does not name the types of its entities."));
      const rows = spans.map(({ type, start, end, score }) => ({
        name: characters.slice(start, end).join("") + (type ? ` (${type})` : ""),
        fraction: score,
      }));
      return [...shown, heading("Scores"), bars(rows)];
    },
  },

  fill_mask: {
    title: "Fill the mask",
    fields: () => [
      field("text", `Text with ${MASK}`, 4, `The capital of France is ${MASK}.`, "Enter a text."),
    ],
    reject: ({ text }) =>
      text.includes(MASK) ? null : `The text has no ${MASK}. Write it where a word is missing.`,
    instances: (values) => [values],
    show: ([row], values, model) => {
      const masks = row.tokens;
      const [first, ...rest] = values.text.split(MASK);
      const unread = rest.length - masks.length;
      const which = unread ? `, with ${unread} of ${rest.length} ${MASK}` : "";
      const notice = truncation(
        row.truncated || unread,
        "The text has",
        model.max_seq_length,
        `The end was not read${which}.`,
      );
      if (!masks.length) return notice;
      let filled = first;
      const spans = [];
      rest.forEach((text, index) => {
        const token = masks[index] ? masks[index][0] : MASK;
        // A token that continues a word starts with ##.
        const word = token.startsWith("##") ? token.slice(2) : token;
        const start = Array.from(filled).length;
        if (masks[index]) spans.push({ start, end: start + Array.from(word).length });
        filled += word + text;
      });
      const shown = [...notice, heading("Most likely text"), highlight(filled, spans)];
      masks.forEach((tokens, index) => {
        shown.push(heading(masks.length > 1 ? `Mask ${index + 1}` : "Predictions"));
        const rows = tokens.map((name, rank) => ({ name, fraction: row.scores[index][rank] }));
        shown.push(bars(rows.filter(({ name }) => name !== "")));
      });
      return shown;
    },
  },

  embedding: {
    title: "Similarity of two texts",
    fields: () => [
      field("first", "First text", 3, "How do I reset my password?", "Enter the first text."),
      field("second", "Second text", 3, "I cannot log in any more.", "Enter the second text."),
    ],
    instances: (values) => [{ text: values.first }, { text: values.second }],
    show: ([first, second], values, model) => {
      const names = Object.keys(first).filter((name) => Array.isArray(first[name]));
      const rows = names.map((name) => {
        const fraction = cosine(first[name], second[name]);
        return { name, fraction, number: fraction.toFixed(3) };
      });
      const declared = rows.find(({ name }) => name === model.pooling);
      const undeclared = rows.filter((row) => row !== declared);
      return [
        ...truncation(first.truncated, "The first text has", model.max_seq_length),
        ...truncation(second.truncated, "The second text has", model.max_seq_length),
        heading("Cosine similarity" + (declared ? `, ${declared.name} pooling` : "")),
        ...(declared ? [large(declared.number), heading("Other poolings")] : []),
        bars(undeclared),
        note("1 means the same direction. 0 or less (an empty bar) means no similarity."),
        ...(declared ? [] : [note("The model does not declare which pooling it was trained for.")]),
      ];
    },
  },
};

// A summary of a result for screen readers: its warnings, and its main text or, without one, the
// first highlighted texts or the notes.
export function summarize(shown) {
  const textsOf = (kind) => shown.filter((each) => each.matches(kind)).map((x) => x.textContent);
  const main = textsOf(".large").map((text) => `${text}.`);
  if (!main.length) {
    const marked = shown.find((each) => each.matches(".marked"))?.querySelectorAll("mark") ?? [];
    const texts = [...marked].map((mark) => mark.textContent);
    const more = texts.length > 3 ? ` and ${texts.length - 3} more` : "";
    if (texts.length) main.push(`${texts.slice(0, 3).join(", ")}${more}.`);
    else main.push(...textsOf(".note"));
  }
  return [...textsOf(".warning"), ...main].join(" ");
}
