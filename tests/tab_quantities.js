// Figures of the open run that no quantity names, by view: a figure is a number with a unit. It carries its quantity itself
// or within what carries it, or stands in a row or column whose heading does. A sentence names what its figures are.
// With "shown" only what shows is looked at, and not every view in turn.
async (_, which) => {
  const figure = /\d[\u00a0 ]?(?:ms|µs|s|%|[kMGT]?B(?:\/s)?)(?![\w])/;
  const words = (text) => text.replace(/[^A-Za-z]+/g, " ").trim().split(" ").filter((word) => word.length > 2).length;
  const unnamed = [];
  const isNamed = (node) => {
    const element = node.parentElement;
    if (element.closest("[data-quantity], canvas, svg, select, button.chip, .code, pre, code")) return true;
    const cell = element.closest("td, th");
    if (cell) {
      const [row, table] = [cell.closest("tr"), cell.closest("table")];
      const place = [...row.children].indexOf(cell);
      const head = table.tHead?.rows[table.tHead.rows.length - 1]?.children[place];
      // The page of a stuck job has no views and no quantities: there a heading's own words do.
      if (!document.querySelector(".tabs") && head && words(head.textContent) > 0) return true;
      return Boolean(head?.dataset.quantity || row.querySelector("th[data-quantity]")) || words(cell.textContent) > 3;
    }
    // Its own words, as in "optimizer states 20.00 GB", the term beside it, its title, or the scale that it is an end of.
    if (words(node.data.replace(/\b(?:step|mean|median|per|rank)\b/g, "")) > 0) return true;
    if (element.closest("dd")?.previousElementSibling?.matches("dt") && !element.closest("dl.effects")) return true;
    if (element.closest("[title]:not([title=''])") || element.closest(".key")) return true;
    if (element.closest("dl.effects")) return words(element.parentElement.textContent) > 1;
    const sentence = element.closest("p, li, summary, h1, h2, h3, small, label, output, [role=status]");
    return sentence !== null && words(sentence.textContent) > 3;
  };
  const settled = () => new Promise((done) => setTimeout(done, 30));
  const unfold = async () => {
    for (let i = 0; i < 3; i++) {
      document.querySelectorAll(".panel details:not([open])").forEach((details) => (details.open = true));
      await settled();
    }
  };
  const look = (where) => {
    const walker = document.createTreeWalker(document.querySelector(".panel") ?? document.querySelector("main"), NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (figure.test(node.data) && !isNamed(node)) unnamed.push(`${where}: ${node.parentElement.tagName}.${node.parentElement.className}: ${node.parentElement.parentElement.className}: ${node.data}`);
    }
  };
  if (which === "shown") {
    look("shown");
    return unnamed;
  }
  for (const tab of [...document.querySelectorAll(".tabs a")].map((one) => one.textContent)) {
    [...document.querySelectorAll(".tabs a")].find((one) => one.textContent === tab).click();
    await settled();
    const parts = [...document.querySelectorAll(".parts a")].map((one) => one.textContent);
    for (const part of parts.length ? parts : [""]) {
      if (part) [...document.querySelectorAll(".parts a")].find((one) => one.textContent === part).click();
      await unfold();
      look(`${tab} ${part}`);
    }
  }
  return unnamed;
}
