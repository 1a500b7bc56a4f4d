// Live parts of a page, and keys. Everything can be read, and done, without this file.
"use strict";

const live = document.body.dataset.live;
const lost = document.getElementById("lost");

function put(id, html) {
  const place = document.getElementById(id);
  if (!place) return;
  const held = document.activeElement;
  const inside = place.contains(held) && held !== place;
  if (inside && /^(INPUT|TEXTAREA|SELECT)$/.test(held.tagName)) return; // somebody types there
  const label = inside ? held.getAttribute("aria-label") || held.getAttribute("href") : null;
  const rolled = [...place.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  place.innerHTML = html;
  place.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = rolled[at] || 0; });
  if (label) {
    const again = place.querySelector(`[aria-label="${CSS.escape(label)}"], [href="${CSS.escape(label)}"]`);
    if (again) again.focus({ preventScroll: true });
  }
}

if (live && window.EventSource) {
  let source = null;
  const again = () => setTimeout(begin, 3000);
  const refused = (answer) => { // the page itself then asks who you are
    if (answer.status === 401) return location.reload();
    if (answer.body) answer.body.cancel();
    again();
  };
  const begin = () => {
    source = new EventSource(live);
    source.onmessage = (event) => {
      lost.hidden = true;
      document.body.classList.remove("stale");
      if (String(getSelection())) return; // somebody copies
      for (const [id, html] of Object.entries(JSON.parse(event.data))) put(id, html);
    };
    source.onerror = () => {
      lost.hidden = false;
      document.body.classList.add("stale");
      if (source.readyState === EventSource.CLOSED) fetch(live).then(refused, again);
    };
  };
  const end = () => { if (source) source.close(); source = null; };
  document.addEventListener("visibilitychange", () => (document.hidden ? end() : source || begin()));
  addEventListener("pagehide", end);
  if (!document.hidden) begin();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "/") {
    const search = document.querySelector("main input[type=search], main input:not([type=hidden])");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
    return;
  }
  const tab = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
  if (tab) { event.preventDefault(); tab.click(); return; }
  if (event.key === "j" || event.key === "k") {
    const rows = [...document.querySelectorAll("main td:first-child a")];
    const at = rows.indexOf(document.activeElement);
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === "j" ? 1 : -1)))];
    if (next) { event.preventDefault(); next.focus(); }
  }
});
