function spectrum(root, figure) {
  const panels = figure.panels || [];
  if (!panels.length) return root.append(empty("No run of this figure has anything to show yet."));
  const points = panels.flatMap((panel) => panel.points || []).filter((point) => point.every(isNumber));
  const reach = Math.max(1.15, ...points.map(([re, im]) => Math.max(Math.abs(re), Math.abs(im)) * 1.08));
  root.append(h("div", { class: `panels ${panels.length > 2 ? "small" : ""}` }, ...panels.map((panel) => disc(panel, reach))));
}

function disc(panel, reach) {
  const points = (panel.points || []).filter((point) => point.every(isNumber));
  if (!points.length) return h("div", {}, h("h4", {}, panel.title || ""), empty("No eigenvalues."));
  const radius = Math.max(...points.map(([re, im]) => Math.hypot(re, im)));
  const plot = h("div", { class: "plot" });
  const svg = s("svg", { role: "img", tabindex: 0, "aria-label": `${panel.title || "Spectrum"}: ${points.length} eigenvalues, the largest of modulus ${show(radius)}. Arrow keys read them.` });
  plot.append(svg);
  const hover = tip(plot);
  let dots = [], places = [], chosen = -1;

  function draw(width) {
    const side = Math.min(width - 58, 420), box = { left: 46, right: 46 + side, top: 8, bottom: 8 + side, edge: 12 };
    const x = scale(-reach, reach, box.left, box.right), y = scale(-reach, reach, box.bottom, box.top);
    svg.setAttribute("viewBox", `0 0 ${width} ${box.bottom + 46}`);
    svg.replaceChildren();
    axes(svg, box, x, y, { x: "Re λ", y: "Im λ" }, 40);
    svg.append(s("circle", { class: "circle", cx: x(0), cy: y(0), r: x(1) - x(0) }));
    places = points.map(([re, im]) => [x(re), y(im)]);
    dots = places.map(([cx, cy]) => s("circle", { class: "eigen", cx, cy, r: points.length > 150 ? 2.6 : 3.6 }));
    svg.append(...dots, s("rect", { class: "area", x: box.left, y: box.top, width: side, height: side }));
    choose(-1);
  }
  function choose(index) {
    dots[chosen]?.classList.remove("on");
    chosen = index;
    if (index < 0) return hover.hide();
    dots[index].classList.add("on");
    const [re, im] = points[index];
    hover.show(...places[index], h("div", {}, `λ = ${show(re)} ${im < 0 ? "−" : "+"} ${show(Math.abs(im))} i`), h("strong", {}, `|λ| = ${show(Math.hypot(re, im), 5)}`));
  }
  function near(event) {
    const [x, y] = at(svg, event);
    let best = -1, least = 24;
    places.forEach(([px, py], index) => {
      const distance = Math.hypot(px - x, py - y);
      if (distance < least) [best, least] = [index, distance];
    });
    choose(best);
  }
  for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, near);
  for (const kind of ["pointerleave", "blur"]) svg.addEventListener(kind, (event) => event.pointerType !== "touch" && choose(-1));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    choose((chosen + step + points.length) % points.length);
    event.preventDefault();
  });
  whenSized(plot, draw);
  return h("div", {}, h("h4", {}, panel.title || ""), plot, h("p", { class: "hint" }, `ρ = ${show(radius, 5)}, ${points.length} eigenvalues`));
}
