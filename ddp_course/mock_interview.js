// Lesson 15's mock interview: a random question, a clock, the answer, a grade. No network.
ddpPage("mock_interview", (cards, find) => {
  const KEY = "ddp_course mock interview";
  let now = null, started = 0, clock = null;

  // Grades by question, kept in this browser; without its storage they last as long as the page.
  let grades = {};
  try { grades = JSON.parse(localStorage.getItem(KEY)) || {}; } catch { /* no storage here */ }
  function keep() {
    try { localStorage.setItem(KEY, JSON.stringify(grades)); } catch { /* no storage here */ }
  }

  const chosen = () => cards.filter((c) => find("section").value === "all" || c.section === find("section").value);

  function score() {
    const some = chosen(), count = (grade) => some.filter((c) => grades[c.question] === grade).length;
    find("score").textContent = `${some.length} questions: ${count("knew")} known, ` +
      `${count("partly")} partly, ${count("not")} not yet.`;
  }

  function tick() {
    const s = Math.floor((Date.now() - started) / 1000);
    find("clock").textContent = `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
  }

  function ask() {
    // What is not known comes before what is; never the same one twice in a row.
    const others = chosen().filter((c) => c !== now);
    const open = others.filter((c) => grades[c.question] !== "knew");
    const from = open.length ? open : others.length ? others : chosen();
    now = from[Math.floor(Math.random() * from.length)];
    find("question").textContent = now.question;
    find("answer").innerHTML = now.answer;
    find("answer").hidden = find("grades").hidden = true;
    find("reveal").disabled = false;
    started = Date.now();
    clearInterval(clock);
    clock = setInterval(tick, 500);
    tick();
  }

  function reveal() {
    clearInterval(clock);
    tick();
    find("answer").hidden = find("grades").hidden = false;
    find("reveal").disabled = true;
  }

  ["knew", "partly", "not"].forEach((grade) => {
    find(grade).addEventListener("click", () => { grades[now.question] = grade; keep(); score(); ask(); });
  });
  find("next").addEventListener("click", ask);
  find("reveal").addEventListener("click", reveal);
  find("forget").addEventListener("click", () => { grades = {}; keep(); score(); });
  find("section").innerHTML = ["all", ...new Set(cards.map((c) => c.section))]
    .map((name) => `<option>${name}</option>`).join("");
  find("section").addEventListener("change", () => { score(); ask(); });
  find("reveal").disabled = true;
  find("question").textContent = "Three sentences, aloud, in about a minute. Ready?";
  score();
});
