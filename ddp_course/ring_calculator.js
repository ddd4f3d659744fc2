// The calculator of lesson 05: ddp_course/ring.py's what_if, in the page. No network.
ddpPage("ring_calculator", (presets, find) => {
  const fields = ["ranks", "per_node", "megabytes", "fixed_us", "alpha_in_us", "GBps_in",
    "alpha_between_us", "GBps_between"];
  const colours = { ring: "#1845fb", "two-level": "#ff5e02", tree: "#656364" };

  // Milliseconds of each algorithm; the same formulas as ring.what_if, where they are explained.
  function whatIf(v) {
    const n = v.ranks, g = Math.min(v.per_node, n), nodes = n / g, bytes = v.megabytes * 1e6;
    const inside = (part) => v.alpha_in_us * 1e-6 + part / (v.GBps_in * 1e9);
    const between = (part) => v.alpha_between_us * 1e-6 + part / (v.GBps_between * 1e9);
    const slowest = (part) => nodes > 1 ? Math.max(g > 1 ? inside(part) : 0, between(part)) : inside(part);
    let tree = 0;
    for (let d = 1; d < n; d *= 2) {
      let level = 0;
      for (let child = d; child < n; child += 2 * d) {
        const crosses = Math.floor(child / g) !== Math.floor((child - d) / g);
        level = Math.max(level, crosses ? between(bytes) : inside(bytes));
      }
      tree += 2 * level;
    }
    const fixed = v.fixed_us * 1e-6;
    return {
      ring: 1e3 * (fixed + 2 * (n - 1) * slowest(bytes / n)),
      "two-level": 1e3 * (fixed + 2 * (g - 1) * inside(bytes / g) + 2 * (nodes - 1) * between(bytes / n)),
      tree: 1e3 * (fixed + tree),
    };
  }

  function show() {
    const v = Object.fromEntries(fields.map((f) => [f, Number(find(f).value)]));
    const whole = Number.isInteger(v.ranks) && Number.isInteger(v.per_node);
    let complaint = "";
    if (!whole || v.ranks < 2 || v.ranks > 65536 || v.per_node < 1) {
      complaint = "Type 2 to 65536 ranks, and 1 or more in a node.";
    } else if (v.ranks > v.per_node && v.ranks % v.per_node) {
      complaint = "The ranks must fill their nodes: type a multiple of the ranks in a node.";
    } else if (!(v.megabytes > 0 && v.GBps_in > 0 && v.GBps_between > 0)
        || Math.min(v.fixed_us, v.alpha_in_us, v.alpha_between_us) < 0) {
      complaint = "Type sizes and speeds above 0, and times of 0 or more.";
    }
    find("picture").innerHTML = "";
    if (complaint) { find("text").textContent = complaint; return; }
    const found = whatIf(v), most = Math.max(...Object.values(found));
    find("picture").innerHTML = Object.entries(found).map(([name, ms], i) =>
      `<text x="78" y="${24 + 30 * i}" text-anchor="end" font-size="13">${name}</text>` +
      `<rect x="86" y="${10 + 30 * i}" width="${Math.max(400 * ms / most, 1)}" height="20" fill="${colours[name]}"/>` +
      `<text x="${92 + 400 * ms / most}" y="${24 + 30 * i}" font-size="13" data-ms="${ms}">` +
      `${ms.toPrecision(3)} ms, busbw ${(v.megabytes / ms * 2 * (v.ranks - 1) / v.ranks).toPrecision(3)} GB/s</text>`
    ).join("");
    const best = Object.keys(found).reduce((a, b) => found[a] <= found[b] ? a : b);
    find("text").textContent = `In this model the ${best} is the fastest of the three.`;
    find("picture").setAttribute("aria-label",
      Object.entries(found).map(([name, ms]) => `${name} ${ms.toPrecision(3)} ms`).join(", "));
  }

  find("preset").innerHTML = Object.keys(presets).map((name) => `<option>${name}</option>`).join("");
  function take() {
    Object.entries(presets[find("preset").value]).forEach(([f, value]) => { find(f).value = value; });
    show();
  }
  find("preset").addEventListener("change", take);
  fields.forEach((f) => find(f).addEventListener("input", show));
  take();
});
