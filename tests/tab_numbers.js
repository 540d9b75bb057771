// Every number that the open run shows, by what it is: {"busy time of rank 1": [["Budget, table", "36.1"], ...]}. Numbers
// that stand in two places have one key.
async () => {
  const found = {};
  const text = (element) => (element?.textContent ?? "").replace(/\s+/g, " ").trim();
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const add = (key, place, value) => value && value !== "–" && (found[key] ??= []).push([place, value]);
  const go = async (title, view) => {
    all(".tabs a").find((tab) => text(tab) === title).click();
    if (view) all(".parts a").find((part) => text(part) === view).click();
    for (let i = 0; i < 3; i++) {
      // Folds are filled when they open.
      all(".panel details:not([open])").forEach((details) => (details.open = true));
      await new Promise((done) => setTimeout(done, 20));
    }
  };
  const parts = /^(.+) ([\d.,]+ (?:ms|s|µs))$/;
  /** Rows of a table by their heads, units of heads behind their numbers. */
  const rows = (table) => {
    const heads = all("thead th, thead td", table).map((head) => text(head).replace(/ [▾▴]$/, ""));
    return all("tbody tr", table).map((row) => Object.fromEntries(all("th, td", row).map((cell, i) => [heads[i].replace(/, ms$/, ""), text(cell) + (heads[i].endsWith(", ms") ? " ms" : "")])));
  };

  await go("Verdict");
  const tiles = Object.fromEntries(all(".tiles > div").map((tile) => [text(tile.querySelector("dt")), text(tile.querySelector("dd b"))]));
  add("step", "tile", tiles["Step now"]);
  add("step with the fixes", "tile", tiles["Step with the fixes"]);
  add("account: unexplained", "tile", tiles.Unexplained);
  const [, step, lines] = text(document.querySelector(".account-card .sum")).match(/^([\d.]+) = (.*) \(ms\)$/) ?? [];
  add("step", "account's sum", `${step} ms`);
  for (const one of (lines ?? "").split(" + ")) {
    const [value, name] = one.split(" ");
    if (!name.startsWith("finding")) add(`account: ${name}`, "account's sum", `${value} ms`);
  }
  for (const item of all(".account > li")) {
    const number = text(item.querySelector(".badge"));
    add(number ? `cost of finding ${number}` : `account: ${text(item.querySelector(".title"))}`, "account's list", text(item.querySelector(".cost")));
    if (number) add(`share of finding ${number}`, "account's list", text(item.querySelector("small")));
  }
  for (const part of all(".account-bar > .part")) {
    const number = text(part.querySelector(".badge"));
    const [, name, value] = part.title.replace(/\s+/g, " ").match(/^(.+): ([^,]+), .+$/);
    add(number ? `cost of finding ${number}` : `account: ${name}`, "account's bar", value);
  }
  for (const item of all(".costliest > li")) {
    const number = text(item.querySelector(".badge"));
    const share = text(item.querySelector(".cost small")).split(" · ")[0];
    add(`cost of finding ${number}`, "costliest", text(item.querySelector(".cost")).replace(text(item.querySelector(".cost small")), "").trim());
    add(`share of finding ${number}`, "costliest", share);
    add(`cost of finding ${number}`, "arithmetic", text(item.querySelector(".arithmetic li.result:last-child b")));
  }
  for (const item of all(".opportunities > ol > li")) {
    const cost = item.querySelector(".cost");
    add(`cost of finding ${text(item.querySelector(".letter"))}`, "opportunities", text(cost).replace(text(cost.querySelector("small")), "").trim());
  }
  for (const row of all(".main .card > .row")) {
    const rank = text(row.querySelector(".rank").firstChild);
    add(`step of ${rank}`, "verdict's budget", text(row.querySelector(".total")));
    for (const part of row.querySelector(".bar").getAttribute("aria-label").replace(/\s+/g, " ").split(", ")) {
      const [, owner, value] = part.match(parts) ?? [];
      if (owner) add(`${owner} of ${rank}`, "verdict's budget", value);
    }
  }
  add("checks passed", "verdict", text(document.querySelector(".checks h2")).match(/^\d+ of \d+/)?.[0]);

  await go("Verdict", "Findings");
  const [, fixed, now] = text(document.querySelector(".prospect")).match(/^(.+?) a step instead of (.+?):/) ?? [];
  add("step with the fixes", "what-if", fixed);
  add("step", "what-if", now);
  for (const row of all(".finding-row")) {
    const number = text(row.querySelector(".badge, .letter"));
    const [cost, share] = [row.querySelector(".cost"), row.querySelector(".cost small")];
    if (share) {
      add(`cost of finding ${number}`, "finding", text(cost).replace(text(share), "").trim());
      add(`share of finding ${number}`, "finding", text(share).replace(" of the step", ""));
      add(`cost of finding ${number}`, "saving", text(row.querySelector(".sure b")).match(/saves (.+?) a step/)?.[1]);
    }
    const [, mean, owner, rank] = text(row.querySelector(".amount")).match(/^(.+?) a step of (.+?) on (rank \d+)\b/) ?? [];
    if (mean) add(`${owner} of ${rank}`, "finding's sum", mean);
    // The listed evidence and the lengths of gaps, where they are of one owner.
    const [, stretches, kind, sum] = text(row.querySelector(".sum")).match(/^([\d,]+) stretches of GPU idle, (.+?) \(.+\), (.+?); /) ?? [];
    const [, gaps, long] = text(row.querySelector(".histogram + .note")).match(/^([\d,]+) gaps?, ([\d.,]+ [^\s,:]+)[ ,:]/) ?? [];
    if (stretches && gaps && text(row.querySelector(".occurs h3")).startsWith(`Where: ${kind},`)) {
      add(`stretches of finding ${number}`, "evidence", stretches);
      add(`stretches of finding ${number}`, "gaps by length", gaps);
      add(`sum of finding ${number}`, "evidence", sum);
      add(`sum of finding ${number}`, "gaps by length", long);
    }
    const of = text(row.querySelector(".occurs h3")).match(/^Where: (.+), ms per/)?.[1];
    for (const cell of all(".cells button", row)) {
      const [, place, value] = cell.getAttribute("aria-label").replace(/\s+/g, " ").match(/^(Rank \d+, step \d+): (.+)$/);
      add(`${of} of ${place.toLowerCase()}`, "finding's cells", value);
      add(`${of} of ${place.toLowerCase()}`, "finding's cells, written", `${text(cell)} ms`);
    }
  }

  await go("Ranks & steps", "Budget");
  for (const row of all(".bars > .row")) add(`step of ${text(row.querySelector(".rank")).replace(" ◀", "")}`, "budget's bars", text(row.querySelector(".total")));
  for (const { rank, node, ...values } of rows(document.querySelector(".numbers table")))
    for (const [owner, value] of Object.entries(values)) add(`${owner} of ${rank}`, "budget's table", value);

  await go("Ranks & steps", "Steps");
  for (const kind of ["Busy time", "Straggler wait", "Step time"]) {
    all(".switch button").find((button) => text(button) === kind).click();
    const name = kind === "Step time" ? "step" : kind.toLowerCase();
    for (const row of rows(document.querySelector("table.heat")))
      for (const [head, value] of Object.entries(row)) if (head) add(`${name} of ${row[""]}, ${head}`, "cells of steps", value);
  }
  for (const row of rows(document.querySelector(".numbers table"))) {
    const place = `${row.rank}, step ${row.step}`;
    add(`busy time of ${place}`, "table of steps", row["busy time"]);
    add(`straggler wait of ${place}`, "table of steps", row["straggler wait"]);
    add(`step of ${place}`, "table of steps", row["step time"]);
  }

  await go("Ranks & steps", "Ranks");
  for (const row of rows(document.querySelector(".grid table"))) {
    const rank = row.rank.replace(" ◀", "");
    for (const [head, owner] of [["step", "step"], ["busy time", "busy time"], ["straggler wait", "straggler wait"], ["compute", "compute"], ["exposed", "exposed communication"], ["copy", "copy"]]) {
      add(`${owner} of ${rank}`, "ranks", `${row[head]} ms`);
    }
    add(`overlap of ${rank}`, "ranks", row.overlap);
  }

  await go("Communication");
  const [byKind, ...others] = all(".grid table").map(rows);
  const byNode = others.find(([row]) => row && "wait caused" in row);
  for (const { calls } of byKind ?? []) add("calls a step", "by kind", calls);
  for (const { calls } of byNode ?? []) add("calls a step", "by node", calls);

  await go("Verdict", "Data quality");
  add("checks passed", "data quality", all("summary").map(text).map((said) => said.match(/^(\d+ of \d+) checks? passed/)?.[1]).find(Boolean));
  return found;
}
