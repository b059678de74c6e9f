// The parts that results are made of: headings, bars, marked texts and legends.
//
// Like Python, offsets count code points, so texts are converted to arrays of code points first.

export function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
  created.append(...children);
  return created;
}

export const percent = (fraction) => `${(100 * fraction).toFixed(1)}%`;
export const heading = (text) => element("h2", {}, text);
export const note = (text) => element("p", { class: "note" }, text);
export const warning = (text) => element("p", { class: "warning" }, text);
export const large = (text) => element("p", { class: "large", dir: "auto" }, text);

// A list of bars from {name, fraction, number}: a name (text or element), a bar and a number.
// Rows after the first `shown` ones appear on demand. Names that are long are above their bars.
export function bars(rows, shown = 10) {
  const long = rows.some(({ name }) => name.length > 40);
  const list = element("ul", { class: long ? "bars long" : "bars", tabindex: "-1" });
  rows.forEach(({ name, fraction, number }, index) => {
    const filled = element("span");
    filled.style.width = percent(Math.min(1, Math.max(0, fraction)));
    const row = element(
      "li",
      {},
      element("span", { class: "name", dir: "auto" }, name),
      element("span", { class: "track", "aria-hidden": "true" }, filled),
      element("span", { class: "number" }, number ?? percent(fraction)),
    );
    row.hidden = index >= shown;
    list.append(row);
  });
  const more = rows.length - shown;
  if (more <= 0) return list;
  const button = element("button", { type: "button", class: "more" }, `Show ${more} more`);
  button.addEventListener("click", () => {
    for (const row of list.children) row.hidden = false;
    (list.children[shown].querySelector("button") ?? list).focus();
    button.remove();
  });
  return element("div", {}, list, button);
}

// A text with highlighted spans {start, end, type, score}, in order and not overlapping.
export function highlight(text, spans, hues = new Map()) {
  const characters = Array.from(text);
  const shown = element("p", { class: "marked", dir: "auto" });
  let position = 0;
  for (const { start, end, type, score } of spans) {
    shown.append(characters.slice(position, start).join(""));
    const mark = element("mark", {}, characters.slice(start, end).join(""));
    if (hues.has(type)) mark.style.setProperty("--hue", hues.get(type));
    if (type) mark.append("\u00a0", element("small", { dir: "ltr", title: percent(score) }, type));
    shown.append(mark);
    position = end;
  }
  shown.append(characters.slice(position).join(""));
  return shown;
}

// A legend of the colors of `highlight`, from [type, meaning] pairs.
export function legend(types, hues) {
  const list = element("ul", { class: "legend", "aria-label": "Legend" });
  for (const [type, meaning] of types) {
    const mark = element("mark", {}, element("small", {}, type));
    mark.style.setProperty("--hue", hues.get(type));
    list.append(element("li", {}, mark, ` ${meaning}`));
  }
  return list;
}
