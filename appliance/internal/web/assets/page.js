// What the page does in the browser beside htmx: clocks that go on, the line about a lost connection, keys, and forms that arm
// themselves when what must be typed is right. Every page works without it.
(() => {
  "use strict";
  const $ = (id) => document.getElementById(id);

  // Moments: the server says them once, here they go on. The words are those of words.go.
  const span = (s) => {
    s = Math.max(0, Math.floor(s));
    if (s < 60) return s + " s";
    if (s < 3600) return Math.floor(s / 60) + " min";
    if (s < 86400) return Math.floor(s / 3600) + " h";
    if (s < 172800) return "1 day";
    return Math.floor(s / 86400) + " days";
  };
  const say = (style, s) => {
    if (style === "for") return span(s);
    if (style === "in" && s < 0) return "in " + span(-s);
    return s < 5 ? "just now" : span(s) + " ago";
  };
  // The browser's clock may be wrong: moments are counted from the server's, which the page brought.
  const skew = Date.now() - Date.parse(document.body.dataset.now || new Date().toISOString());
  const tick = () => {
    const now = Date.now() - skew;
    for (const t of document.querySelectorAll("time[data-say]")) {
      const text = say(t.dataset.say, (now - Date.parse(t.dateTime)) / 1000);
      if (t.textContent !== text) t.textContent = text;
    }
    if (lostSince) $("lost-since").textContent = say("ago", (Date.now() - lostSince) / 1000);
  };

  // The stream. Whatever is not heard of for longer than two beats is lost, also when the browser has not noticed.
  const silence = 25000;
  let lostSince = 0, heard = Date.now(), streams = [], fails = 0;
  const lost = () => {
    if (!$("live")) return;
    if (!lostSince) lostSince = heard;
    tick();
    $("lost").hidden = false;
    document.body.classList.add("stale");
  };
  const found = () => {
    heard = Date.now();
    lostSince = 0;
    fails = 0;
    $("lost").hidden = true;
    document.body.classList.remove("stale");
  };
  const on = (name, f) => document.addEventListener(name, f);
  on("htmx:sse:after:connection", (e) => {
    streams.push({ at: e.target, c: e.detail.connection });
    found();
  });
  on("htmx:sse:before:message", found);
  on("htmx:sse:before:connection", (e) => { if (e.detail.connection.attempt > 0 && !document.hidden) lost(); });
  on("htmx:sse:error", (e) => {
    if (e.detail.status === 401) location.reload();
    lost();
  });
  // The first connection is htmx's own request: that it did not come about is no stream's error.
  const again = (e) => {
    if (!e.target || e.target.id !== "live") return;
    lost();
    const at = e.target;
    setTimeout(() => { if (at.isConnected) htmx.ajax("GET", at.getAttribute("hx-sse:connect"), { source: at }); }, Math.min(15000, 1000 * 2 ** fails++));
  };
  on("htmx:error", again);
  on("htmx:response:error", again);
  on("over", () => location.reload());
  setInterval(() => {
    tick();
    streams = streams.filter((s) => s.at.isConnected || (s.c.reader && s.c.reader.cancel(), false));
    if (document.hidden) { heard = Date.now(); return; }
    if ($("live") && Date.now() - heard > silence) {
      lost();
      heard = Date.now();
      for (const s of streams) if (s.c.reader) s.c.reader.cancel();
    }
  }, 1000);

  // A log that is read at its end stays at its end.
  const atEnd = (log) => log.scrollTop + log.clientHeight >= log.scrollHeight - 24;
  let follow = true;
  const toEnd = () => { const log = document.querySelector(".log"); if (log && follow) log.scrollTop = log.scrollHeight; };
  on("htmx:before:swap", () => { const log = document.querySelector(".log"); if (log) follow = atEnd(log); });
  on("htmx:after:swap", toEnd);

  // Keys.
  let g = 0;
  on("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) || e.target.isContentEditable;
    if (e.key === "Escape") {
      for (const d of document.querySelectorAll("details.who[open]")) d.open = false;
      if (typing) e.target.blur();
      return;
    }
    if (typing) return;
    if (e.key === "/" && $("q")) { e.preventDefault(); $("q").focus(); $("q").select(); return; }
    const to = { f: "/", d: "/discovered", i: "/images", h: "/health" }[e.key];
    if (to && Date.now() - g < 1500) location.href = to;
    g = e.key === "g" ? Date.now() : 0;
  });
  on("click", (e) => {
    for (const d of document.querySelectorAll("details.who[open]")) if (!d.contains(e.target)) d.open = false;
  });

  // A destructive button is armed when what must be typed is right; it is not red before.
  const arm = (form) => {
    const want = form.querySelector("[data-want]"), b = form.querySelector("button.danger");
    if (b) b.classList.toggle("armed", !want || want.value.trim() === want.dataset.want);
  };
  on("input", (e) => { const f = e.target.closest && e.target.closest("form[data-arm]"); if (f) arm(f); });
  on("submit", (e) => {
    const f = e.target, b = f.querySelector("button[data-busy]");
    if (f.dataset.sent) { e.preventDefault(); return; }
    if (f.method !== "post") return;
    f.dataset.sent = "1";
    if (b) { b.dataset.label = b.textContent; b.textContent = b.dataset.busy; b.setAttribute("aria-busy", "true"); }
  });
  addEventListener("pageshow", () => {
    for (const f of document.querySelectorAll("form[data-sent]")) {
      delete f.dataset.sent;
      const b = f.querySelector("button[data-label]");
      if (b) { b.textContent = b.dataset.label; b.removeAttribute("aria-busy"); }
    }
    for (const f of document.querySelectorAll("form[data-arm]")) arm(f);
    tick();
    toEnd();
  });
})();
