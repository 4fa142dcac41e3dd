// Sends a directory that imagebuild wrote, part by part. What the appliance has is not sent again, so a broken upload goes on when the
// same directory is chosen again; the appliance checks every part against its digest and the whole at the end.
(() => {
  "use strict";
  const form = document.getElementById("upload");
  if (!form) return;
  const $ = (id) => document.getElementById(id);
  const tries = 4;
  let stopped = false, running = false;

  class Refused extends Error {
    constructor(f) { super(f.cause); this.f = f; }
  }
  const call = async (method, path, body, type) => {
    const answer = await fetch(path, { method, body, headers: { "X-CSRF": form.dataset.csrf, "Content-Type": type } });
    if (answer.status === 401) throw new Refused({ op: "add image", cause: "you are signed out", next: "sign in again and choose the same directory" });
    const data = await answer.json().catch(() => null);
    if (answer.ok) return data;
    throw new Refused(data && data.error ? data.error : { op: "add image", cause: "the appliance answered " + answer.status, next: "try again; it goes on where it ended" });
  };
  const bytes = (n) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let i = 0;
    while (n >= 1000 && i < 4) { n /= 1000; i++; }
    return (i === 0 || n >= 99.95 ? n.toFixed(0) : n.toFixed(1).replace(/\.0$/, "")) + " " + units[i];
  };
  const left = (s) => (s < 60 ? Math.ceil(s) + " s" : s < 3600 ? Math.floor(s / 60) + " min" : Math.floor(s / 3600) + " h");
  const line = (text) => { $("up-state").hidden = false; $("up-line").textContent = text; };
  const wrong = (f) => {
    $("up-three").hidden = false;
    $("up-what").textContent = "The image is not added";
    $("up-why").textContent = f.cause;
    $("up-next").textContent = f.next || "choose the same directory again: it goes on where it ended";
  };
  const base64 = (buffer) => {
    let s = "";
    const b = new Uint8Array(buffer);
    for (let i = 0; i < b.length; i += 32768) s += String.fromCharCode.apply(null, b.subarray(i, i + 32768));
    return btoa(s);
  };
  const find = (files) => {
    const blobs = new Map();
    let manifest = null;
    for (const f of files) {
      if (f.name === "manifest.json") manifest = f;
      else blobs.set(f.name, f);
    }
    return { manifest, blobs };
  };
  const put = async (id, sha, file) => {
    for (let n = 1; ; n++) {
      try {
        return await call("PUT", "/images/uploads/" + encodeURIComponent(id) + "/blobs/" + sha, file, "application/octet-stream");
      } catch (e) {
        if (e instanceof Refused || n === tries || stopped) throw e;
        line("Connection lost, trying again (" + n + " of " + (tries - 1) + ")");
        await new Promise((r) => setTimeout(r, 1000 * 2 ** n));
      }
    }
  };
  const send = async (name, files) => {
    const { manifest, blobs } = find(files);
    if (!manifest) throw new Refused({ cause: "the directory holds no manifest.json", next: "choose the directory that imagebuild pack wrote" });
    line("Reading what the image is made of");
    const body = JSON.stringify({ name, manifest: base64(await manifest.arrayBuffer()) });
    let up = await call("POST", "/images/uploads", body, "application/json");
    if (up.image) return up.image;
    const began = Date.now(), had = up.have, missing = up.missing || [];
    for (let i = 0; i < missing.length; i++) {
      if (stopped) return null;
      const sha = missing[i], file = blobs.get(sha) || blobs.get(sha + ".zst");
      if (!file) throw new Refused({ cause: "the directory does not hold the part " + sha, next: "make the image again with imagebuild pack, and choose its whole directory" });
      up = await put(up.id, sha, file);
      const rate = (up.have - had) / Math.max(1, (Date.now() - began) / 1000);
      $("up-bar").value = up.total ? Math.round((1000 * up.have) / up.total) : 0;
      line("Sent " + bytes(up.have) + " of " + bytes(up.total) + ", " + bytes(rate) + "/s" + (rate > 0 && up.have < up.total ? ", about " + left((up.total - up.have) / rate) + " left" : ""));
    }
    line("All is sent; the appliance verifies it as a whole");
    return call("POST", "/images/uploads/" + encodeURIComponent(up.id) + "/finish", "", "application/json");
  };
  form.addEventListener("submit", async (e) => {
    e.preventDefault();
    if (running) return;
    running = true;
    stopped = false;
    $("up-three").hidden = true;
    $("up-stop").hidden = false;
    try {
      const done = await send(form.elements.name.value.trim(), form.elements.dir.files);
      running = false;
      if (done) { location.href = "/images"; return; }
      line("Paused. Upload goes on where it ended.");
    } catch (err) {
      wrong(err instanceof Refused ? err.f : { cause: "the connection broke: " + err.message, next: "" });
    } finally {
      running = false;
      delete form.dataset.sent;
      $("up-stop").hidden = true;
    }
  });
  $("up-stop").addEventListener("click", () => { stopped = true; line("Pausing after the part in hand"); });
  addEventListener("beforeunload", (e) => { if (running) e.preventDefault(); });
})();
