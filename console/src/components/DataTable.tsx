/** A list of objects as a table: sorted by a column, some columns chosen, exported as CSV. */

import { useEffect, useState } from "preact/hooks";
import type { DataDocument } from "../data/document";
import type { Row, Sort } from "../data/nodes";
import type { Path } from "../json/value";
import { Button, download } from "./Button";
import { Icon } from "./Icon";
import { Menu } from "./Menu";
import { Value } from "./Tree";

const PAGE = 100;
const FIRST_COLUMNS = 12;

export function DataTable(props: { document: DataDocument; path: Path; name: string }) {
  const { document: data, path } = props;
  const [all, setAll] = useState<string[]>([]);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [sort, setSort] = useState<Sort | undefined>();
  const [rows, setRows] = useState<Row[]>([]);
  const [count, setCount] = useState(PAGE);
  const columns = all.filter((column) => !hidden.has(column));
  const key = JSON.stringify([path, columns, sort, count]);
  useEffect(() => {
    void data.columns(path).then((found) => {
      setAll(found);
      setHidden(new Set(found.slice(FIRST_COLUMNS)));
    });
  }, [data, JSON.stringify(path)]);
  useEffect(() => {
    let isCurrent = true;
    void data.rows(path, columns, sort, 0, count).then((found) => isCurrent && setRows(found));
    return () => {
      isCurrent = false;
    };
  }, [data, key]);
  const by = (column: string) => setSort({ column, descending: sort?.column === column ? !sort.descending : false });
  const isNumber = (index: number) => rows.slice(0, 20).every((row) => row.cells[index]?.kind === "number");
  return (
    <>
      <div class="row mb">
        <Menu
          look="btn"
          button={
            <>
              Columns <Icon name="down" small />
            </>
          }
        >
          {() =>
            all.map((column) => (
              <label key={column}>
                <input
                  type="checkbox"
                  checked={!hidden.has(column)}
                  onChange={() =>
                    setHidden((old) =>
                      old.has(column) ? new Set([...old].filter((each) => each !== column)) : new Set([...old, column]),
                    )
                  }
                />
                <code>{column}</code>
              </label>
            ))
          }
        </Menu>
        <Button
          icon="download"
          onClick={() =>
            void data.csv(path, columns, sort).then((text) => download(`${props.name}.csv`, text, "text/csv"))
          }
        >
          CSV
        </Button>
        <span class="t3 right n">{rows.length.toLocaleString("en")} rows</span>
      </div>
      <div class="tablewrap" tabIndex={0} role="region" aria-label="Table">
        <table>
          <thead>
            <tr>
              <th />
              {columns.map((column, index) => (
                <th
                  key={column}
                  class={isNumber(index) ? "num" : ""}
                  aria-sort={sort?.column === column ? (sort.descending ? "descending" : "ascending") : undefined}
                >
                  <button type="button" onClick={() => by(column)}>
                    {column}
                    {sort?.column === column ? (sort.descending ? " ↓" : " ↑") : ""}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.index}>
                <td class="num t3">{row.index}</td>
                {row.cells.map((cell, index) => (
                  <td key={columns[index]} class={isNumber(index) ? "num" : ""}>
                    {cell === undefined ? (
                      ""
                    ) : cell.kind === "string" || cell.kind === "number" ? (
                      cell.text
                    ) : (
                      <Value node={cell} />
                    )}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length === count && (
        <Button class="pt" onClick={() => setCount(count + PAGE * 5)}>
          Show more
        </Button>
      )}
    </>
  );
}
