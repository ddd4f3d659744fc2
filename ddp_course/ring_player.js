// The player of lesson 05: replays schedules that ddp_course/ring.py has made. No network.
ddpPage("ring_player", (schedules, find) => {
  // matplotlib's petroff8: told apart by the colour-blind, too.
  const colours = ["#1845fb", "#ff5e02", "#c91f16", "#c849a9", "#adad7d", "#86c8dd", "#578dff", "#656364"];
  const [algorithm, ranks, picture, text] = ["algorithm", "ranks", "picture", "text"].map(find);
  let at = 0, timer = null;

  const schedule = () => schedules[algorithm.value][ranks.value];

  // What each rank holds of each chunk after `done` steps: a set of ranks whose numbers are in it.
  function held(done) {
    const n = Number(ranks.value), chunks = schedule().chunks;
    let parts = Array.from({ length: n }, (_, r) => Array.from({ length: chunks }, () => 1 << r));
    schedule().steps.slice(0, done).forEach((step) => {
      const before = parts.map((row) => [...row]);  // all messages of a step leave at once
      step.forEach(([from, to, chunk, add]) => {
        parts[to][chunk] = add ? parts[to][chunk] | before[from][chunk] : before[from][chunk];
      });
    });
    return parts;
  }

  function draw() {
    const n = Number(ranks.value), { chunks, steps } = schedule();
    const parts = held(at), now = at ? steps[at - 1] : [];
    const row = 34, left = 150, width = 560, cell = (width - 10) / chunks, small = (cell - 12) / n;
    const middle = (rank) => 20 + rank * row;
    const out = [];
    for (let r = 0; r < n; r++) {
      out.push(`<text x="${left - 8}" y="${middle(r) + 4}" text-anchor="end" font-size="12">rank ${r}</text>`);
      for (let c = 0; c < chunks; c++) {
        const x = left + c * cell, written = now.some((m) => m[1] === r && m[2] === c);
        out.push(`<rect x="${x}" y="${middle(r) - 13}" width="${cell - 6}" height="26" fill="none" ` +
          `stroke="${written ? "#000" : "#999"}" stroke-width="${written ? 3 : 1}"/>`);
        for (let k = 0; k < n; k++) {
          if (parts[r][c] >> k & 1) {
            out.push(`<rect class="in" x="${x + 3 + k * small}" y="${middle(r) - 9}" ` +
              `width="${Math.max(small - 1, 1)}" height="18" fill="${colours[k]}"/>`);
          }
        }
      }
    }
    [...new Map(now.map((m) => [`${m[0]} ${m[1]}`, m])).values()].forEach(([from, to, , add]) => {
      const a = middle(from), b = middle(to), bend = left - 72 - 60 * Math.abs(from - to) / n;
      out.push(`<path class="arrow" d="M ${left - 54} ${a} C ${bend} ${a} ${bend} ${b} ${left - 54} ${b}" ` +
        `fill="none" stroke="${add ? "#c91f16" : "#1845fb"}" stroke-width="2" ` +
        `stroke-dasharray="${add ? "" : "5 3"}" marker-end="url(#tip)"/>`);
    });
    picture.setAttribute("viewBox", `0 0 ${left + width} ${n * row + 10}`);
    picture.innerHTML = "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='5' " +
      "markerHeight='5' orient='auto'><path d='M0 0 L8 4 L0 8 z'/></marker></defs>" + out.join("");
    const sent = Array(n).fill(0);
    steps.slice(0, at).forEach((step) => step.forEach((m) => { sent[m[0]] += 1 / chunks; }));
    const whole = parts.every((row) => row.every((p) => p === (1 << n) - 1));
    const messages = now.map(([a, b, c, add]) => `${a}→${b} ${add ? "adds" : "copies"} chunk ${c}`);
    text.textContent = `Step ${at} of ${steps.length}. ` +
      `The busiest rank has sent ${Math.max(...sent).toFixed(2)} buffers. ` +
      (whole ? "All ranks hold the whole sum. " : "") + messages.join(", ");
    picture.setAttribute("aria-label", text.textContent);
  }

  function stop() { clearInterval(timer); timer = null; find("play").textContent = "Play"; }
  function go(to) { at = Math.max(0, Math.min(to, schedule().steps.length)); draw(); }
  function refill() {  // two-level needs an even number of ranks, from four on
    const old = ranks.value;
    ranks.innerHTML = Object.keys(schedules[algorithm.value]).map((n) => `<option>${n}</option>`).join("");
    ranks.value = schedules[algorithm.value][old] ? old : "4";
  }
  const buttons = {
    first: () => go(0), previous: () => go(at - 1), next: () => go(at + 1),
    last: () => go(schedule().steps.length),
  };
  Object.entries(buttons).forEach(([name, act]) => {
    find(name).addEventListener("click", () => { stop(); act(); });
  });
  find("play").addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (at === schedule().steps.length) { go(0); }
    find("play").textContent = "Pause";
    timer = setInterval(() => { go(at + 1); if (at === schedule().steps.length) { stop(); } }, 1200);
  });
  algorithm.addEventListener("change", () => { stop(); refill(); go(0); });
  ranks.addEventListener("change", () => { stop(); go(0); });
  algorithm.innerHTML = Object.keys(schedules).map((name) => `<option>${name}</option>`).join("");
  refill();
  ranks.value = "4";
  go(0);
});
