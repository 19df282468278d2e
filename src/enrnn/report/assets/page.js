const results = JSON.parse($("#results").textContent), drawing = JSON.parse($("#drawing").textContent);

/* Theme: what the system says, until the reader says otherwise. */
const system = matchMedia("(prefers-color-scheme: dark)");
const remember = (value) => { try { return value ? localStorage.setItem("enrnn-theme", value) : localStorage.getItem("enrnn-theme"); } catch { return null; } };
const themeSwitch = $("#theme");
const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
const tellTheme = () => themeSwitch.setAttribute("aria-pressed", isDark());
const remembered = remember();
if (remembered) document.documentElement.dataset.theme = remembered;
themeSwitch.hidden = false;
themeSwitch.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  remember(document.documentElement.dataset.theme);
  tellTheme();
});
system.addEventListener("change", tellTheme);
tellTheme();

/* Rows that open. */
for (const button of $$(".open-row")) {
  const more = document.getElementById(button.getAttribute("aria-controls"));
  const set = (open) => { more.hidden = !open; button.setAttribute("aria-expanded", open); };
  button.addEventListener("click", () => set(more.hidden));
  set(false);
}

/* Claims of one verdict alone. */
for (const button of $$(".tally")) {
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    for (const other of $$(".tally")) other.setAttribute("aria-pressed", on && other === button);
    for (const claim of $$(".claims > li")) claim.hidden = on && claim.dataset.verdict !== button.dataset.verdict;
  });
}

/* A link to a run that is folded away unfolds it. */
const unfold = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = target && target.closest("details");
  if (folded && !folded.open) { folded.open = true; target.scrollIntoView(); }
};
addEventListener("hashchange", unfold);
unfold();

/* Where the reader is. */
const links = new Map($$("nav a").map((link) => [link.getAttribute("href").slice(1), link]));
const seen = new Set();
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) seen.add(entry.target); else seen.delete(entry.target);
  const first = [...links.keys()].map((id) => document.getElementById(id)).filter((node) => seen.has(node)).at(-1);
  for (const [id, link] of links) if (first && first.id === id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
}, { rootMargin: "-12% 0px -70% 0px" });
for (const id of links.keys()) { const node = document.getElementById(id); if (node) watch.observe(node); }

/* The embedded results as a file. */
const save = $("#save");
save.hidden = false;
save.addEventListener("click", () => {
  const address = URL.createObjectURL(new Blob([$("#results").textContent], { type: "application/json" }));
  h("a", { href: address, download: "results.json" }).click();
  URL.revokeObjectURL(address);
});

const KINDS = { curves, heatmaps, spectrum };
for (const root of $$(".drawing")) {
  const index = Number(root.dataset.figure), figure = results.figures[index];
  const draw = KINDS[figure.kind];
  if (draw) draw(root, figure, figure.kind === "heatmaps" ? drawing.map : drawing.styles[index]);
  else root.append(empty(`This page cannot draw a figure of kind “${figure.kind}”.`));
}
