// Sorts the rows of a table by the column whose heading is activated, by mouse or keyboard.
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const descending = head.ariaSort === (head.classList.contains("number") ? null : "ascending")
        || head.ariaSort === "ascending";
      const body = table.tBodies[0];
      const key = (row) => {
        const cell = row.cells[column];
        return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
      };
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        const [isText, isOther] = [typeof x === "string", typeof y === "string"];
        if (isText !== isOther) return isText ? 1 : -1;  // unknown numbers are last
        const order = isText ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
        return descending ? -order : order;
      });
      heads.forEach((other) => { other.ariaSort = null; });
      head.ariaSort = descending ? "descending" : "ascending";
      body.append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
}
