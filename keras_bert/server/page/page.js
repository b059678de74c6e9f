// Reads the task of the served model, builds its form, and shows the model's responses.

import { element, note } from "./parts.js";
import { TASKS, summarize } from "./tasks.js";

const byId = (id) => document.getElementById(id);
const KEY = "keras_bert_api_key"; // in the session storage

// Returns the answer and the number of truncated texts.
async function fetchJson(path, body) {
  let response;
  try {
    const headers = { "Content-Type": "application/json" };
    const key = sessionStorage.getItem(KEY);
    if (key) headers.Authorization = `Bearer ${key}`;
    const post = body && { method: "POST", body: JSON.stringify(body) };
    response = await fetch(path, { headers, ...post });
  } catch {
    throw new Error("The server does not respond.");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) askForKey();
  if (!response.ok) {
    throw new Error(answer.error ?? `The server responded with status ${response.status}.`);
  }
  return [answer, Number(response.headers.get("X-Truncated-Rows"))];
}

function askForKey() {
  byId("access").hidden = false;
  byId("key").focus();
  document.querySelector("footer").hidden = true; // A browser follows links without the key.
}

function showError(error) {
  byId("error").textContent = error ? error.message : "";
  byId("error").hidden = !error;
}

// Shows a result, and puts a summary of it into the status text for screen readers.
function showResult(shown, milliseconds) {
  const taken = milliseconds && `Answered in ${Math.max(1, Math.round(milliseconds))} ms.`;
  byId("result").replaceChildren(...shown, ...(taken ? [note(taken)] : []));
  byId("status").textContent = taken ? `${summarize(shown)} ${taken}` : "";
}

// Shows the request as a shell command. In a shell, a single quote ends a quoted text.
function showCurl(path, body) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const url = quoted(new URL(path, document.baseURI).href);
  const key = sessionStorage.getItem(KEY) ? '-H "Authorization: Bearer $API_KEY" ' : "";
  byId("curl").textContent = `curl ${url} \\\n  ${key}-d ${quoted(JSON.stringify(body))}`;
  byId("copy").textContent = "Copy as curl";
  byId("request").hidden = false;
}

async function copyCurl() {
  const copied = () => (byId("copy").textContent = "Copied");
  // Without HTTPS, browsers allow access to the clipboard only for a server on the same machine.
  // The text is then selected instead.
  const select = () => getSelection().selectAllChildren(byId("curl"));
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(byId("curl").textContent).then(copied, select);
  } else {
    select();
  }
}

function buildInput({ name, label, rows }) {
  const input = element("textarea", { id: name, name, rows, spellcheck: "false", dir: "auto" });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      byId("form").requestSubmit();
    }
  });
  byId("fields").append(element("label", { for: name }, label), input);
  return input;
}

// Returns an Error that describes the first incomplete field, and marks and focuses this field.
// Returns null if the form is complete.
function missing(task, fields, inputs, values) {
  const empty = fields.findIndex(({ name }) => !values[name].trim());
  const message = empty >= 0 ? fields[empty].missing : task.reject?.(values);
  inputs.forEach((input, index) => {
    if (message && index === Math.max(empty, 0)) {
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", "error");
      input.focus();
    } else {
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-describedby");
    }
  });
  return message ? new Error(message) : null;
}

function build(model) {
  const task = TASKS[model.problem_type === "reranking" ? "ranking" : model.task];
  if (!task) throw new Error(`This page does not support the task "${model.task}".`);
  document.title = `${task.title} · ${model.model_name}`;
  byId("title").textContent = task.title;
  byId("about").textContent = `Model ${model.model_name}, version ${model.model_version}`;
  byId("metadata").href = `v1/models/${encodeURIComponent(model.model_name)}/metadata`;
  const predict = `v1/models/${encodeURIComponent(model.model_name)}:predict`;
  const fields = task.fields(model);
  const inputs = fields.map(buildInput);
  // Texts that the model was trained on, if the export has any, one for each field.
  const trained = model.examples ?? [];
  const examples = (task.examples?.(trained) ?? trained).filter(
    (texts) => texts.length === fields.length,
  );
  if (!examples.length) examples.push(fields.map(({ sample }) => sample));
  let shown = 0;
  let busy = false;

  function showExample() {
    inputs.forEach((input, index) => (input.value = examples[shown][index]));
    shown = (shown + 1) % examples.length;
    inputs[0].focus();
  }

  async function send() {
    const values = Object.fromEntries(inputs.map((input) => [input.name, input.value]));
    byId("request").hidden = true;
    const problem = missing(task, fields, inputs, values);
    if (problem) throw problem;
    const [path, body] = task.request?.(values, model) ?? [
      predict,
      { instances: task.instances(values) },
    ];
    showCurl(path, body);
    const started = performance.now();
    const [answer, truncated] = await fetchJson(path, body);
    const milliseconds = performance.now() - started;
    showResult(task.show(answer.predictions ?? answer, values, model, truncated), milliseconds);
  }

  byId("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (busy) return;
    busy = true;
    byId("send").setAttribute("aria-disabled", "true");
    try {
      await send();
      showError(null);
    } catch (error) {
      showResult([]);
      showError(error);
    } finally {
      busy = false;
      byId("send").removeAttribute("aria-disabled");
    }
  });
  byId("example").addEventListener("click", showExample);
  byId("copy").addEventListener("click", copyCurl);
  byId("form").hidden = false;
  showExample();
}

// Links to the pages of the models, if there are several.
function linkModels({ data }) {
  const link = ({ id }) => element("a", { href: `?model=${encodeURIComponent(id)}` }, id);
  byId("models").replaceChildren(...data.flatMap((model) => [link(model), " "]));
  byId("models").hidden = data.length < 2;
}

async function load() {
  try {
    const [[models], [model]] = await Promise.all(
      ["v1/models", `export.json${location.search}`].map((path) => fetchJson(path)),
    );
    linkModels(models);
    build(model);
  } catch (error) {
    const asks = !byId("access").hidden;
    byId("title").textContent = asks ? "This server needs a key" : "No demo for this model";
    showError(asks && !sessionStorage.getItem(KEY) ? null : error);
  }
}

byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("key").value);
  byId("access").hidden = true;
  showError(null);
  if (byId("form").hidden) load();
});
load();
