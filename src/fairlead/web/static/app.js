// Keeps the page up to date by server-sent events, and lets it be used with the keyboard. Everything works without it.
"use strict";

(() => {
  const main = document.getElementById("main");
  const live = document.getElementById("live");
  const help = document.getElementById("help");
  let source = null;
  let looked = performance.now();

  // Live updates ------------------------------------------------------------------------------------------------

  function follow() {
    if (source !== null || document.hidden) return;
    const view = location.pathname + location.search;
    source = new EventSource("/live?view=" + encodeURIComponent(view) + "&digest=" + main.dataset.digest);
    source.onopen = () => say("live");
    // The browser tries again by itself.
    source.onerror = () => say("not connected");
    source.onmessage = (message) => {
      const told = JSON.parse(message.data);
      const made = new DOMParser().parseFromString("<main>" + told.main + "</main>", "text/html");
      const log = document.getElementById("log");
      const atEnd = log !== null && log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
      morphChildren(main, made.body.firstElementChild);
      main.dataset.digest = told.digest;
      document.title = told.title + " - Fairlead";
      looked = performance.now();
      if (atEnd) scrollLog();
    };
    source.addEventListener("gone", () => { rest(); say("no longer there"); });
  }

  // A tab that nobody sees asks for nothing; browsers open only six connections to one server.
  function rest() {
    if (source !== null) source.close();
    source = null;
  }

  function say(text) {
    live.textContent = text;
    live.dataset.state = text === "live" ? "on" : "off";
  }

  // Make the children of one element like those of another, and touch nothing that is alike: focus, selection, scroll
  // positions and text that somebody types stay.
  function morphChildren(now, then) {
    const known = new Map();
    for (const child of now.children) if (child.id) known.set(child.id, child);
    let at = now.firstChild;
    for (const wanted of [...then.childNodes]) {
      const same = wanted.id ? known.get(wanted.id) : undefined;
      if (same !== undefined && same !== at && same.parentNode === now) {
        now.insertBefore(same, at);
        at = same;
      }
      if (at !== null && isAlike(at, wanted)) {
        morph(at, wanted);
        at = at.nextSibling;
      } else {
        now.insertBefore(document.importNode(wanted, true), at);
      }
    }
    while (at !== null) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function isAlike(one, other) {
    return one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");
  }

  function morph(now, then) {
    if (now.nodeType !== Node.ELEMENT_NODE) {
      if (now.nodeValue !== then.nodeValue) now.nodeValue = then.nodeValue;
      return;
    }
    for (const { name } of [...now.attributes]) {
      if (!then.hasAttribute(name) && name !== "data-chosen") now.removeAttribute(name);
    }
    for (const { name, value } of then.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
    if (now.isEqualNode(then)) return;
    morphChildren(now, then);
  }

  // What runs is counted up between two looks.
  function count() {
    const passed = (performance.now() - looked) / 1000;
    for (const each of main.querySelectorAll("time[data-counts]")) {
      each.textContent = duration(Number(each.dataset.counts) + passed);
    }
  }

  // As fairlead.text.quantities.describe_duration says it.
  function duration(seconds) {
    const whole = Math.round(seconds);
    const parts = [[Math.floor(whole / 86400), "d"], [Math.floor(whole / 3600) % 24, "h"],
      [Math.floor(whole / 60) % 60, "m"], [whole % 60, "s"]];
    while (parts.length > 1 && parts[0][0] === 0) parts.shift();
    return parts.slice(0, 2).filter(([value]) => value).map(([value, unit]) => value + unit).join(" ") || "0s";
  }

  function scrollLog() {
    const log = document.getElementById("log");
    if (log !== null) log.scrollTop = log.scrollHeight;
  }

  // Keys --------------------------------------------------------------------------------------------------------

  let goes = false;

  function rows() {
    return [...main.querySelectorAll("table.rows tbody tr")].filter((row) => row.querySelector("a") !== null);
  }

  function choose(step) {
    const all = rows();
    if (all.length === 0) return;
    const before = all.findIndex((row) => row.hasAttribute("data-chosen"));
    const next = before < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, before + step));
    for (const row of all) row.removeAttribute("data-chosen");
    all[next].setAttribute("data-chosen", "");
    all[next].querySelector("a").focus({ preventScroll: true });
    all[next].scrollIntoView({ block: "nearest" });
  }

  function onKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const field = event.target.closest("input, select, textarea");
    if (field !== null) {
      if (event.key === "Escape") field.blur();
      return;
    }
    if (help.open) return;
    const follows = goes;
    goes = false;
    if (follows) {
      for (const link of document.querySelectorAll("nav a")) if (link.dataset.key === event.key) link.click();
      return;
    }
    if (event.key === "g") goes = true;
    else if (event.key === "j") choose(1);
    else if (event.key === "k") choose(-1);
    else if (event.key === "u") (document.getElementById("parent") || document.getElementById("up"))?.click();
    else if (event.key === "?") help.showModal();
    else if (event.key === "/") {
      const search = document.getElementById("search");
      if (search === null) return;
      search.focus();
      search.select();
    } else return;
    event.preventDefault();
  }

  // ---------------------------------------------------------------------------------------------------------------

  const button = document.getElementById("help-open");
  button.hidden = false;
  button.addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", onKey);
  document.addEventListener("change", (event) => { if (event.target.matches("form.filter select, form.filter [type=checkbox]")) event.target.form.requestSubmit(); });
  document.addEventListener("visibilitychange", () => (document.hidden ? rest() : follow()));
  // A page that comes back by the browser's own memory is as old as it was left.
  window.addEventListener("pageshow", follow);
  window.addEventListener("pagehide", rest);
  setInterval(count, 1000);
  scrollLog();
})();
