// Reads the task of the served model, builds its form, and shows the model's responses.
//
// Characters are counted as Python counts them, by code point: texts are sliced as arrays of them.

"use strict";

const MASK = "[MASK]";
const HUES = [212, 145, 28, 285, 340, 180, 75, 255];

const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
  created.append(...children);
  return created;
}

const percent = (fraction) => `${(100 * fraction).toFixed(1)}%`;
const heading = (text) => element("h2", {}, text);
const note = (text) => element("p", { class: "note" }, text);
const large = (text) => element("p", { class: "large" }, text);

// A list of bars from {name, fraction, number}: a name (text or element), a bar and a number.
function bars(rows) {
  const list = element("ul", { class: "bars" });
  for (const { name, fraction, number } of rows) {
    const filled = element("span");
    filled.style.width = percent(Math.min(1, Math.max(0, fraction)));
    list.append(
      element(
        "li",
        {},
        element("span", { class: "name" }, name),
        element("span", { class: "track", "aria-hidden": "true" }, filled),
        element("span", { class: "number" }, number ?? percent(fraction)),
      ),
    );
  }
  return list;
}

// A text with highlighted spans {start, end, type, score}, in order and not overlapping.
function highlight(text, spans, hues = new Map()) {
  const characters = Array.from(text);
  const shown = element("p", { class: "marked" });
  let position = 0;
  for (const { start, end, type, score } of spans) {
    shown.append(characters.slice(position, start).join(""));
    const mark = element("mark", {}, characters.slice(start, end).join(""));
    if (hues.has(type)) mark.style.setProperty("--hue", hues.get(type));
    if (type) mark.append(element("small", { title: percent(score) }, type));
    shown.append(mark);
    position = end;
  }
  shown.append(characters.slice(position).join(""));
  return shown;
}

function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  return dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);
}

// For each task: the fields of the form, the request's instances, and the display of its rows.
const TASKS = {
  classification: {
    title: "Text classification",
    fields: (model) =>
      model.pair
        ? [
            ["text", "First text", 3, "The company said its profit rose in the third quarter."],
            ["text_pair", "Second text", 3, "Profit went up, the company reported."],
          ]
        : [["text", "Text", 4, "A warm, funny and beautifully acted film."]],
    instances: (values) => [values],
    show: ([row], values, model) => {
      // If a signature has a single output, its value has no name.
      const score = typeof row === "number" ? row : row.score;
      if (score !== undefined) return [heading("Score"), large(String(score))];
      const names = model.labels ?? row.probabilities.map((_, index) => String(index));
      const rows = row.probabilities.map((fraction, index) => ({ name: names[index], fraction }));
      rows.sort((a, b) => b.fraction - a.fraction);
      const predicted = (row.labels ?? [row.label]).filter((label) => label !== "");
      return [
        heading(row.labels ? "Labels" : "Label"),
        large(predicted.length ? predicted.join(", ") : "None"),
        heading("Probabilities"),
        bars(rows),
      ];
    },
  },

  question_answering: {
    title: "Question answering",
    fields: () => [
      ["question", "Question", 2, "When was the bridge opened?"],
      [
        "context",
        "Context",
        8,
        "The stone bridge was begun in 1845. After two floods had carried parts of it away, it " +
          "was opened to carriages on 3 May 1851, and to the railway ten years later.",
      ],
    ],
    instances: (values) => [values],
    show: ([row], values) => {
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
          const chosen = button.dataset.span === `${start} ${end}`;
          button.setAttribute("aria-pressed", String(chosen));
        }
      };
      const buttons = best.map((choice) => {
        const text = choice.answer === "" ? "(no answer)" : choice.answer;
        const button = element("button", { type: "button" }, text);
        button.dataset.span = `${choice.start} ${choice.end}`;
        button.addEventListener("click", () => choose(choice));
        return button;
      });
      choose(row);
      return [
        heading("Answer"),
        large(row.answer === "" ? "No answer found in the context" : row.answer),
        context,
        heading("Most likely answers"),
        bars(best.map(({ fraction }, index) => ({ name: buttons[index], fraction }))),
      ];
    },
  },

  ner: {
    title: "Named entities",
    fields: () => [
      [
        "text",
        "Text",
        6,
        "Marie Curie came from Warsaw to Paris and taught at the Sorbonne. In 1911 she went to " +
          "Stockholm for her second Nobel Prize.",
      ],
    ],
    instances: (values) => [values],
    show: ([row], values) => {
      const spans = row.types
        .map((type, index) => ({
          type,
          start: row.starts[index],
          end: row.ends[index],
          score: row.scores[index],
        }))
        .filter(({ start }) => start >= 0);
      const types = [...new Set(spans.map(({ type }) => type))].sort();
      const hues = new Map(types.map((type, index) => [type, HUES[index % HUES.length]]));
      const characters = Array.from(values.text);
      const shown = [heading("Entities"), highlight(values.text, spans, hues)];
      if (!spans.length) return [...shown, note("No entities found.")];
      const rows = spans.map(({ type, start, end, score }) => ({
        name: `${characters.slice(start, end).join("")} (${type})`,
        fraction: score,
      }));
      return [...shown, heading("Scores"), bars(rows)];
    },
  },

  fill_mask: {
    title: "Fill the mask",
    fields: () => [["text", `Text with ${MASK}`, 4, `The capital of France is ${MASK}.`]],
    instances: (values) => [values],
    show: ([row], values) => {
      // Rows are padded to the text with the most masks; padding has no tokens.
      const masks = row.tokens.filter((tokens) => tokens.some((token) => token !== ""));
      if (!masks.length) return [note(`The text has no ${MASK}.`)];
      const [first, ...rest] = values.text.split(MASK);
      let filled = first;
      const spans = [];
      rest.forEach((text, index) => {
        const token = masks[index] ? masks[index][0] : MASK;
        // A token that continues a word starts with ##.
        const word = token.startsWith("##") ? token.slice(2) : token;
        const start = Array.from(filled).length;
        spans.push({ start, end: start + Array.from(word).length });
        filled += word + text;
      });
      const shown = [heading("Most likely text"), highlight(filled, spans)];
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
      ["first", "First text", 3, "How do I reset my password?"],
      ["second", "Second text", 3, "I cannot log in any more."],
    ],
    instances: (values) => [{ text: values.first }, { text: values.second }],
    show: ([first, second]) => {
      const rows = Object.keys(first).map((name) => {
        const fraction = cosine(first[name], second[name]);
        return { name, fraction, number: fraction.toFixed(3) };
      });
      return [
        heading("Cosine similarity"),
        bars(rows),
        note("1 means the same direction. 0 or less (an empty bar) means no similarity."),
      ];
    },
  },
};

async function fetchJson(path, body) {
  let response;
  try {
    response = await fetch(path, body && { method: "POST", body: JSON.stringify(body) });
  } catch {
    throw new Error("The server does not respond.");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Error(answer.error ?? `The server responded with status ${response.status}.`);
  }
  return answer;
}

function showError(error) {
  byId("error").textContent = error ? error.message : "";
  byId("error").hidden = !error;
}

function build(model) {
  const task = TASKS[model.task];
  if (!task) throw new Error(`This page does not support the task "${model.task}".`);
  document.title = `${task.title} · ${model.model_name}`;
  byId("title").textContent = task.title;
  byId("about").textContent = `Model ${model.model_name}, version ${model.model_version}`;
  byId("metadata").href = `v1/models/${encodeURIComponent(model.model_name)}/metadata`;
  const inputs = task.fields(model).map(([name, label, rows, sample]) => {
    const input = element("textarea", { id: name, name, rows, spellcheck: "false" });
    input.value = sample;
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        byId("form").requestSubmit();
      }
    });
    byId("fields").append(element("label", { for: name }, label), input);
    return input;
  });
  let busy = false;
  byId("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (busy) return;
    busy = true;
    byId("send").setAttribute("aria-disabled", "true");
    const values = Object.fromEntries(inputs.map((input) => [input.name, input.value]));
    try {
      const path = `v1/models/${encodeURIComponent(model.model_name)}:predict`;
      const answer = await fetchJson(path, { instances: task.instances(values) });
      showError(null);
      byId("result").replaceChildren(...task.show(answer.predictions, values, model));
    } catch (error) {
      byId("result").replaceChildren();
      showError(error);
    } finally {
      busy = false;
      byId("send").removeAttribute("aria-disabled");
    }
  });
  byId("form").hidden = false;
  inputs[0].focus();
}

fetchJson("export.json")
  .then(build)
  .catch((error) => {
    byId("title").textContent = "No demo for this model";
    showError(error);
  });
