function heatmaps(root, figure, palette) {
  const panels = (figure.panels || []).filter((panel) => panel.values?.length && panel.values[0].length);
  if (!panels.length) return root.append(empty("No run of this figure has anything to show yet."));
  const list = h("div", { class: "panels" });
  const canShare = panels.length > 1 && new Set(panels.map((panel) => Boolean(panel.log))).size === 1;
  const state = { shared: canShare && figure.shared !== false };
  const drawn = panels.map((panel, index) => heatmap(panel, `${root.dataset.figure}-${index}`, palette, () => (state.shared ? panels : [panel])));
  if (canShare) {
    const button = h("button", { type: "button", "aria-pressed": state.shared, on: { click: () => { state.shared = !state.shared; button.setAttribute("aria-pressed", state.shared); drawn.forEach((one) => one.draw()); } } }, "One colour scale for all");
    root.append(h("div", { class: "tools" }, h("span", { class: "gap" }), button));
  }
  list.append(...drawn.map((one) => one.node));
  root.append(list);
}

function extremes(panels) {
  let [low, high] = [Infinity, -Infinity];
  for (const { values, log } of panels) for (const row of values) for (const value of row) if (isNumber(value) && (!log || value > 0)) { low = Math.min(low, value); high = Math.max(high, value); }
  if (!(low <= high)) return [0.1, 1];
  return low < high ? [low, high] : panels[0].log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
}

function heatmap(panel, id, palette, companions) {
  const rows = panel.values.length, columns = panel.values[0].length;
  const xs = panel.xs || panel.values[0].map((_, j) => j + 1), ys = panel.ys || panel.values.map((_, i) => i + 1);
  const [x0, x1] = edges(xs), [y0, y1] = edges(ys);
  const plot = h("div", { class: "plot" });
  const svg = s("svg", { role: "img", tabindex: 0, "aria-label": `${panel.title || "Heat map"}: ${rows} by ${columns} values. Arrow keys read them.` });
  plot.append(svg);
  const hover = tip(plot);
  let width = 0, box, cell = null, colour;

  function picture() {
    const canvas = h("canvas", { width: columns, height: rows });
    const context = canvas.getContext("2d");
    panel.values.forEach((row, i) => row.forEach((value, j) => {
      if (!isNumber(value)) return;
      const share = panel.log && value <= 0 ? 0 : colour(value);
      context.fillStyle = palette[clamp(Math.round(share), 0, palette.length - 1)];
      context.fillRect(j, i, 1, 1);
    }));
    return canvas.toDataURL();
  }
  function draw() {
    if (!width) return;
    const [low, high] = extremes(companions());
    colour = scale(low, high, 0, palette.length - 1, Boolean(panel.log));
    const left = 62, right = width - 74, side = right - left;
    const tall = panel.xs && panel.ys ? clamp(side * Math.abs((y1 - y0) / (x1 - x0)), side * 0.4, side * 1.3) : clamp((side * rows) / columns, side * 0.35, side * 1.2);
    box = { left, right, top: 8, bottom: 8 + tall, edge: 14 };
    const height = box.bottom + 46;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    axes(svg, box, scale(x0, x1, box.left, box.right), ascending(y0, y1, box), { x: panel.x, y: panel.y }, 52);
    svg.append(s("rect", { class: "none", x: left, y: box.top, width: side, height: tall }));
    svg.append(s("image", { class: "heat", href: picture(), x: left, y: box.top, width: side, height: tall, preserveAspectRatio: "none" }));
    svg.append(s("rect", { class: "frame", x: left, y: box.top, width: side, height: tall }));
    bar(low, high);
    svg.append(s("rect", { class: "cell", visibility: "hidden" }), s("rect", { class: "area", x: left, y: box.top, width: side, height: tall }));
    mark(cell);
  }
  function bar(low, high) {
    const x = box.right + 14, gradient = s("linearGradient", { id: `bar-${id}`, x1: 0, x2: 0, y1: 1, y2: 0 });
    palette.forEach((shade, index) => gradient.append(s("stop", { offset: index / (palette.length - 1), "stop-color": shade })));
    svg.append(gradient, s("rect", { fill: `url(#bar-${id})`, x, y: box.top, width: 12, height: box.bottom - box.top }));
    const along = scale(low, high, box.bottom, box.top, Boolean(panel.log));
    for (const { value, label } of ticks(along, Math.max(2, Math.floor((box.bottom - box.top) / 44)))) {
      svg.append(s("line", { class: "frame", x1: x + 12, x2: x + 15, y1: along(value), y2: along(value) }), s("text", { x: x + 18, y: along(value) + 4 }, label));
    }
  }
  function mark(next) {
    cell = next;
    const frame = $(".cell", svg);
    if (!frame) return;
    frame.setAttribute("visibility", cell ? "visible" : "hidden");
    if (!cell) return hover.hide();
    const [i, j] = cell, w = (box.right - box.left) / columns, t = (box.bottom - box.top) / rows;
    const place = { x: box.left + j * w, y: box.top + i * t, width: w, height: t };
    for (const [key, value] of Object.entries(place)) frame.setAttribute(key, value);
    const value = panel.values[i][j];
    hover.show(place.x + w, place.y, h("div", {}, `${panel.x || "x"} ${show(xs[j])}, ${panel.y || "y"} ${show(ys[i])}`), h("strong", {}, isNumber(value) ? show(value) : "no value"));
  }
  const find = (event) => {
    const [x, y] = at(svg, event);
    const j = Math.floor(((x - box.left) / (box.right - box.left)) * columns), i = Math.floor(((y - box.top) / (box.bottom - box.top)) * rows);
    return i >= 0 && j >= 0 && i < rows && j < columns ? [i, j] : null;
  };
  for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, (event) => box && mark(find(event)));
  for (const kind of ["pointerleave", "blur"]) svg.addEventListener(kind, (event) => event.pointerType !== "touch" && mark(null));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    const [i, j] = cell || [0, 0];
    mark([clamp(i + step[0], 0, rows - 1), clamp(j + step[1], 0, columns - 1)]);
    event.preventDefault();
  });
  whenSized(plot, (now) => { width = now; draw(); });
  return { node: h("div", {}, h("h4", {}, panel.title || ""), plot), draw };
}
/* Half a cell beyond the first and the last. */
function edges(centres) {
  const half = centres.length > 1 ? (centres.at(-1) - centres[0]) / (centres.length - 1) / 2 : 0.5;
  return [centres[0] - half, centres.at(-1) + half];
}
/* The first row is on top: an axis that runs down where its values rise with the rows. */
function ascending(first, last, box) {
  return first < last ? scale(first, last, box.top, box.bottom) : scale(last, first, box.bottom, box.top);
}
