const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/* An element; text is only ever set as text. `on` holds listeners, `css` custom properties. */
function make(space, name, attributes, children) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  const { on, css, ...rest } = attributes || {};
  for (const [key, value] of Object.entries(rest)) if (value !== null && value !== undefined) node.setAttribute(key, value);
  for (const [key, value] of Object.entries(on || {})) node.addEventListener(key, value);
  for (const [key, value] of Object.entries(css || {})) node.style.setProperty(key, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const h = (name, attributes, ...children) => make(null, name, attributes, children);
const s = (name, attributes, ...children) => make("http://www.w3.org/2000/svg", name, attributes, children);

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const raised = (text) => [...String(text)].map((sign) => RAISED[sign]).join("");
const proper = (text) => text.replace("-", "−");
function power(mantissa, exponent) {
  return proper(mantissa === "1" ? "" : mantissa + " × ") + "10" + raised(exponent);
}
/* A value as hovering shows it. */
function show(value, digits = 4) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e7)) {
    const [mantissa, exponent] = value.toExponential(digits - 2).split("e");
    return power(mantissa, Number(exponent));
  }
  if (Number.isInteger(value)) return proper(value.toLocaleString("en").replaceAll(",", "\u202f"));
  return proper(String(Number(value.toPrecision(digits))));
}

/* From [low, high] to [from, to], and back. */
function scale(low, high, from, to, log) {
  const into = log ? Math.log10 : (value) => value;
  const out = log ? (value) => 10 ** value : (value) => value;
  const a = into(low), b = into(high);
  const place = (value) => from + ((into(value) - a) / (b - a)) * (to - from);
  place.back = (pixel) => out(a + ((pixel - from) / (to - from)) * (b - a));
  Object.assign(place, { low, high, log });
  return place;
}

/* Round values between low and high, about `count` of them, with labels. */
function ticks(place, count) {
  const { low, high, log } = place;
  if (log && high / low >= 5) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const stride = Math.max(1, Math.ceil((last - first + 1) / count));
    const found = [];
    const between = last - first < 2 ? [1, 2, 5] : [1];
    for (let exponent = first - 1; exponent <= last; exponent++) {
      if (between.length === 1 && (exponent < first || (exponent - first) % stride)) continue;
      for (const mantissa of between) found.push(mantissa * 10 ** exponent);
    }
    return found.filter((value) => value >= low * 0.999999 && value <= high * 1.000001).map((value) => {
      const [mantissa, exponent] = value.toExponential(0).split("e");
      return { value, label: value >= 0.01 && value < 1e4 ? show(value, 2) : power(mantissa, Number(exponent)) };
    });
  }
  const rough = (high - low) / count;
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * base >= rough * 0.999) * base;
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index <= Math.floor(high / step + 1e-9); index++) found.push(index * step);
  const places = clamp(-Math.floor(Math.log10(step) + 1e-9) + (Math.abs(step / base - 2.5) < 1e-6 ? 1 : 0), 0, 9);
  const far = Math.max(Math.abs(low), Math.abs(high));
  const tiny = far < 1e-3, huge = far >= 1e6;
  return found.map((value) => ({
    value,
    label: value === 0 ? "0" : tiny || huge ? show(Number(value.toPrecision(6)), huge ? 3 : 4) : proper(places ? value.toFixed(places) : show(Math.round(value))),
  }));
}

/* Grid and labels around `box`, with about `apart` pixels between ticks. */
function axes(svg, box, across, up, names, apart = 85) {
  const { left, right, top, bottom } = box;
  const acrossTicks = ticks(across, Math.max(2, Math.floor((right - left) / apart)));
  let end = -Infinity;
  for (const { value, label } of acrossTicks) {
    const x = across(value), half = label.length * 3.6;
    svg.append(s("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom }));
    if (x - half > end) {
      svg.append(s("text", { x, y: bottom + 18, "text-anchor": "middle" }, label));
      end = x + half + 6;
    }
  }
  for (const { value, label } of ticks(up, Math.max(2, Math.floor((bottom - top) / Math.min(48, apart))))) {
    const y = up(value);
    svg.append(s("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
    svg.append(s("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, label));
  }
  svg.append(s("text", { class: "title", x: (left + right) / 2, y: bottom + 37, "text-anchor": "middle" }, names.x || ""));
  const middle = (top + bottom) / 2;
  svg.append(s("text", { class: "title", transform: `translate(${box.edge},${middle}) rotate(-90)`, "text-anchor": "middle" }, names.y || ""));
}
const widest = (place, count) => Math.max(0, ...ticks(place, count).map(({ label }) => label.length)) * 6.6;

/* A small box beside the pointer, kept inside `plot`. */
function tip(plot) {
  const box = h("div", { class: "tip", role: "status", hidden: "" });
  plot.append(box);
  return {
    hide: () => (box.hidden = true),
    show(x, y, ...content) {
      box.replaceChildren(...content);
      box.hidden = false;
      const ratio = plot.clientWidth / (plot.querySelector("svg").viewBox.baseVal.width || plot.clientWidth);
      const left = x * ratio + 16, wide = box.offsetWidth;
      box.style.left = `${clamp(left + wide > plot.clientWidth ? x * ratio - wide - 16 : left, 0, Math.max(0, plot.clientWidth - wide))}px`;
      box.style.top = `${Math.max(0, y * ratio - box.offsetHeight / 2)}px`;
    },
  };
}
/* Where a pointer is, in the drawing's own units. */
function at(svg, event) {
  const place = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
  return [((event.clientX - place.left) / place.width) * view.width, ((event.clientY - place.top) / place.height) * view.height];
}
/* Draw now, and again whenever the width changes. */
function whenSized(plot, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (plot.clientWidth && plot.clientWidth !== width) draw((width = plot.clientWidth));
  }).observe(plot);
}
const empty = (text) => h("p", { class: "empty" }, text);
