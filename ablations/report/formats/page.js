"use strict";
// Sorts a table by the column of the button that was pressed: first descending for numbers and
// ascending for text, then the other way. What has no value stays last; ties keep their order.
for (const button of document.querySelectorAll("th > button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const table = head.closest("table");
    const column = head.cellIndex;
    const rows = Array.from(table.tBodies[0].rows);
    const value = (row) => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
    };
    const text = (row) => row.cells[column].textContent.trim();
    const numeric = rows.some((row) => value(row) !== null);
    const before = head.getAttribute("aria-sort");
    const first = numeric ? "descending" : "ascending";
    const other = numeric ? "ascending" : "descending";
    const order = before === first ? other : first;
    const sign = order === "ascending" ? 1 : -1;
    const missing = (row) => (numeric ? value(row) === null : text(row) === "");
    rows.sort((a, b) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      if (numeric) return sign * (value(a) - value(b));
      return sign * text(a).localeCompare(text(b), "en", { numeric: true });
    });
    table.tBodies[0].append(...rows);
    for (const each of head.parentElement.cells) each.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", order);
  });
}
