const MANY = 6, LISTED = 12;

function curves(root, figure, styles) {
  const all = (figure.series || []).map((series, index) => ({
    label: series.label,
    style: styles[index],
    points: (series.points || []).filter((point) => isNumber(point[0])).sort((a, b) => a[0] - b[0]),
    band: (series.band || []).filter((point) => isNumber(point[0])).sort((a, b) => a[0] - b[0]),
    on: true,
  }));
  const drawable = all.filter((series) => series.points.some((point) => isNumber(point[1])));
  if (!drawable.length) return root.append(empty("No run of this figure has anything to show yet."));
  const names = { x: figure.x?.label, y: figure.y?.label };
  const lines = (figure.lines || []).filter((line) => isNumber(line.y));
  const xLog = Boolean(figure.x?.log) && drawable.every((series) => series.points.every((point) => point[0] > 0));
  const canLog = drawable.some((series) => series.points.some((point) => point[1] > 0));
  const state = { log: Boolean(figure.y?.log) && canLog, x: null, y: null, cursor: null };
  let across, up, box, width = 0;

  const plot = h("div", { class: "plot" });
  const svg = s("svg", { role: "img", tabindex: 0, "aria-label": `${figure.title || figure.name}: ${names.y || "y"} against ${names.x || "x"}, ${all.length} series. Arrow keys read values, plus and minus zoom, 0 resets.` });
  plot.append(svg);
  const hover = tip(plot);
  const clip = `clip-${root.dataset.figure}`;

  const reset = h("button", { type: "button", hidden: "", on: { click: unzoom } }, "Reset zoom");
  const logSwitch = h("button", { type: "button", "aria-pressed": state.log, on: { click: () => { state.log = !state.log; state.y = null; logSwitch.setAttribute("aria-pressed", state.log); draw(); } } }, "Log scale");
  const tools = h("div", { class: "tools" },
    h("span", { class: "hint mouse" }, "Drag to zoom, double-click to reset"), h("span", { class: "hint touch" }, "Drag sideways to zoom, tap for values"),
    h("span", { class: "gap" }), reset, canLog ? logSwitch : null);
  const legend = h("ul", { class: "legend", "aria-label": "Series" });
  for (const series of all) {
    const has = drawable.includes(series);
    series.button = h("button", { type: "button", "aria-pressed": has, disabled: has ? null : "", title: has ? series.label : `${series.label}: nothing to show yet`, on: { click: () => { series.on = !series.on; drawLegend(); } } },
      s("svg", { viewBox: "0 0 26 10", "aria-hidden": "true", class: "series", css: colours(series) }, s("line", { x1: 1, x2: 25, y1: 5, y2: 5, stroke: "currentColor", "stroke-width": 2.5, "stroke-dasharray": series.style.dash || null })),
      h("span", {}, has ? series.label : `${series.label} (no data)`));
    legend.append(h("li", {}, series.button));
  }
  /* The names of lines across stand here, where no curve runs. */
  for (const line of lines) {
    const sample = s("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, s("line", { x1: 1, x2: 25, y1: 5, y2: 5 }));
    legend.append(h("li", { class: "across", title: `${line.label || "line"}: ${show(line.y)}` }, sample, h("span", {}, line.label || show(line.y))));
  }
  if (all.length > MANY) {
    const turn = (on) => () => { drawable.forEach((series) => (series.on = on)); drawLegend(); };
    tools.append(h("button", { type: "button", on: { click: turn(true) } }, "Show all"), h("button", { type: "button", on: { click: turn(false) } }, "Hide all"));
  }
  root.append(tools, plot, legend);

  function colours(series) {
    return { "--light": series.style.light, "--dark": series.style.dark };
  }
  function drawLegend() {
    for (const series of drawable) series.button.setAttribute("aria-pressed", series.on);
    draw();
  }
  const shown = () => drawable.filter((series) => series.on);
  const fits = (value) => isNumber(value) && (!state.log || value > 0);

  function domains() {
    const visible = shown().length ? shown() : drawable;
    let [low, high] = [Infinity, -Infinity];
    for (const series of visible) {
      low = Math.min(low, series.points[0][0]);
      high = Math.max(high, series.points.at(-1)[0]);
    }
    if (low === high) [low, high] = xLog ? [low / 2, high * 2] : [low - 1, high + 1];
    const x = state.x || [low, high];
    if (state.y) return [x, state.y];
    const range = figure.y?.range;
    if (range && range.every(fits) && range[0] < range[1]) return [x, range];
    const values = [];
    for (const series of visible) {
      for (const [where, value] of series.points) if (where >= x[0] && where <= x[1] && fits(value)) values.push(value);
      for (const [where, lower, upper] of series.band) if (where >= x[0] && where <= x[1]) values.push(...[lower, upper].filter(fits));
    }
    if (!state.x) values.push(...lines.map((line) => line.y).filter(fits));
    if (!values.length) values.push(...(state.log ? [0.1, 1] : [0, 1]));
    let [bottom, top] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    if (bottom === top) [bottom, top] = state.log ? [bottom / 3, top * 3] : [bottom - (Math.abs(bottom) || 1) * 0.5, top + (Math.abs(top) || 1) * 0.5];
    if (state.log) {
      const pad = (top / bottom) ** 0.04;
      return [x, [bottom / pad, top * pad]];
    }
    const pad = (top - bottom) * 0.05;
    return [x, [bottom >= 0 && bottom < 0.3 * top && !state.x ? 0 : bottom - pad, top + pad]];
  }

  /* Pieces without gaps; where points are denser than pixels, the lowest and the highest of each pixel. */
  function pieces(points) {
    const [low, high] = [across.low, across.high];
    const found = [];
    let piece = [];
    const end = () => { if (piece.length) found.push(piece); piece = []; };
    points.forEach((point, index) => {
      if (!point.slice(1).every(fits)) return end();
      const before = points[index - 1], after = points[index + 1];
      if ((after && after[0] < low) || (before && before[0] > high)) return;
      piece.push([across(point[0]), ...point.slice(1).map(up)]);
    });
    end();
    return found.map((piece) => (piece.length > 3000 ? thinned(piece) : piece));
  }
  function thinned(piece) {
    const columns = new Map();
    for (const point of piece) {
      const column = Math.round(point[0]);
      const kept = columns.get(column);
      if (!kept) columns.set(column, { low: point, high: point });
      else { if (point[1] > kept.high[1]) kept.high = point; if (point[1] < kept.low[1]) kept.low = point; }
    }
    return [...columns.values()].flatMap(({ low, high }) => (low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  const trace = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

  function draw() {
    if (!width) return;
    const height = clamp(Math.round(width * 0.5), 250, 430);
    const [x, y] = domains();
    reset.hidden = !(state.x || state.y);
    up = scale(y[0], y[1], height - 48, 14, state.log);
    const left = 34 + widest(up, Math.max(2, Math.floor((height - 62) / 48)));
    box = { left, right: width - 12, top: 14, bottom: height - 48, edge: 14 };
    across = scale(x[0], x[1], box.left, box.right, xLog);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren(s("clipPath", { id: clip }, s("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top })));
    axes(svg, box, across, up, names);
    const inside = s("g", { "clip-path": `url(#${clip})` });
    for (const line of lines) if (fits(line.y)) inside.append(s("line", { class: "baseline", x1: box.left, x2: box.right, y1: up(line.y), y2: up(line.y) }));
    for (const series of shown()) {
      const group = s("g", { class: "series", css: colours(series), "data-series": series.label });
      for (const piece of pieces(series.band)) group.append(s("path", { class: "band", d: trace(piece) + trace(piece.map(([x, , high]) => [x, high]).reverse()).replace("M", "L") + "Z" }));
      for (const piece of pieces(series.points)) {
        if (piece.length === 1) group.append(s("circle", { class: "dot", cx: piece[0][0], cy: piece[0][1], r: 4 }));
        else group.append(s("path", { class: "curve", d: trace(piece), "stroke-dasharray": series.style.dash || null }));
      }
      inside.append(group);
    }
    svg.append(inside, s("path", { class: "frame", d: `M${box.left},${box.top}V${box.bottom}H${box.right}` }));
    if (!shown().length) svg.append(s("text", { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" }, "Every series is switched off"));
    svg.append(s("g", { class: "cursor" }), s("rect", { class: "area", x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top }));
    point(state.cursor);
  }

  function nearest(points, x) {
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < x) low = middle; else high = middle;
    }
    return Math.abs(across(points[low][0]) - across(x)) <= Math.abs(across(points[high][0]) - across(x)) ? low : high;
  }
  /* The crosshair at the measured x that is nearest. */
  function point(x, y) {
    const cursor = $(".cursor", svg);
    state.cursor = x;
    if (cursor) cursor.replaceChildren();
    const visible = shown();
    if (x === null || !visible.length || !cursor) return hover.hide();
    const candidates = visible.map((series) => series.points[nearest(series.points, x)][0]);
    const where = candidates.reduce((best, value) => (Math.abs(across(value) - across(x)) < Math.abs(across(best) - across(x)) ? value : best));
    state.cursor = where;
    const px = across(where);
    if (px < box.left - 1 || px > box.right + 1) return hover.hide();
    cursor.append(s("line", { class: "cross", x1: px, x2: px, y1: box.top, y2: box.bottom }));
    if (y !== undefined && y >= box.top && y <= box.bottom) cursor.append(s("line", { class: "cross", x1: box.left, x2: box.right, y1: y, y2: y }));
    const gap = (box.right - box.left) * 0.03;
    const rows = [];
    for (const series of visible) {
      const found = series.points[nearest(series.points, where)];
      if (Math.abs(across(found[0]) - px) > gap || !isNumber(found[1])) continue;
      if (fits(found[1]) && found[1] >= up.low && found[1] <= up.high) cursor.append(s("circle", { class: "dot series", css: colours(series), cx: across(found[0]), cy: up(found[1]), r: 4 }));
      rows.push([found[1], series]);
    }
    rows.sort((a, b) => b[0] - a[0]);
    const body = rows.slice(0, LISTED).map(([value, series]) => h("tr", {},
      h("td", {}, s("svg", { class: "series", css: colours(series), viewBox: "0 0 16 8", width: 16, height: 8 }, s("line", { x1: 0, x2: 16, y1: 4, y2: 4, stroke: "currentColor", "stroke-width": 2.5, "stroke-dasharray": series.style.dash || null }))),
      h("td", {}, series.label), h("td", {}, show(value))));
    hover.show(px, y ?? (box.top + box.bottom) / 2, h("div", {}, `${names.x || "x"} ${show(where)}`), h("table", {}, h("tbody", {}, ...body)),
      rows.length > LISTED ? h("div", {}, `and ${rows.length - LISTED} more`) : "");
  }

  function unzoom() {
    state.x = state.y = null;
    draw();
  }
  function zoom(x, y) {
    if (x && across(x[1]) - across(x[0]) > 1e-6 && x[1] - x[0] > Math.abs(x[1]) * 1e-9) state.x = x;
    if (y) state.y = y;
    state.cursor = null;
    draw();
  }
  let drag = null;
  svg.addEventListener("pointerdown", (event) => {
    if (!event.target.classList.contains("area") || event.button) return;
    const [x, y] = at(svg, event);
    drag = { x, y, mouse: event.pointerType === "mouse", mark: s("rect", { class: "select" }) };
    svg.append(drag.mark);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!across) return;
    const [x, y] = at(svg, event);
    if (!drag) {
      if (x >= box.left - 4 && x <= box.right + 4 && y >= box.top - 4 && y <= box.bottom + 4) point(across.back(x), y); else point(null);
      return;
    }
    drag.area = selected(x, y);
    const { x0, x1, y0, y1, wide, tall } = drag.area;
    const values = { x: wide ? x0 : box.left, width: wide ? x1 - x0 : box.right - box.left, y: tall ? y0 : box.top, height: tall ? y1 - y0 : box.bottom - box.top };
    if (wide || tall) for (const [key, value] of Object.entries(values)) drag.mark.setAttribute(key, value);
    hover.hide();
  });
  /* A drag that is level selects across alone, an upright one up alone; a finger selects across alone. */
  function selected(x, y) {
    const x0 = clamp(Math.min(x, drag.x), box.left, box.right), x1 = clamp(Math.max(x, drag.x), box.left, box.right);
    const y0 = clamp(Math.min(y, drag.y), box.top, box.bottom), y1 = clamp(Math.max(y, drag.y), box.top, box.bottom);
    return { x0, x1, y0, y1, wide: x1 - x0 > 8, tall: drag.mouse && y1 - y0 > 24 };
  }
  function drop(event) {
    if (!drag) return;
    const { area, mark } = drag;
    drag = null;
    mark.remove();
    if (event.type === "pointerup" && area && (area.wide || area.tall)) zoom(area.wide ? [across.back(area.x0), across.back(area.x1)] : null, area.tall ? [up.back(area.y1), up.back(area.y0)] : null);
    else if (event.type === "pointerup") { const [x, y] = at(svg, event); point(across.back(x), y); }
  }
  svg.addEventListener("pointerup", drop);
  svg.addEventListener("pointercancel", drop);
  svg.addEventListener("pointerleave", (event) => { if (!drag && event.pointerType === "mouse") point(null); });
  svg.addEventListener("blur", () => point(null));
  svg.addEventListener("dblclick", unzoom);
  svg.addEventListener("keydown", (event) => {
    const middle = state.cursor ?? across.back((box.left + box.right) / 2);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && shown().length) {
      const { points } = shown()[0];
      const next = state.cursor === null ? nearest(points, middle) : nearest(points, middle) + step * (event.shiftKey ? 10 : 1);
      point(points[clamp(next, 0, points.length - 1)][0]);
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      const half = ((box.right - box.left) / 2) * (event.key === "-" ? 2 : 0.5), centre = across(middle);
      zoom([across.back(centre - half), across.back(centre + half)], null);
    } else if (event.key === "0" || event.key === "Escape") unzoom();
    else return;
    event.preventDefault();
  });
  whenSized(plot, (now) => { width = now; draw(); });
}
