/** A list of objects as a table: sorted by a column, some columns chosen, exported as CSV. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { DataDocument } from "../data/document";
import type { Row, Sort } from "../data/nodes";
import { plural } from "../format";
import type { Path } from "../json/value";
import { Button, download } from "./Button";
import { Icon } from "./Icon";
import { Menu } from "./Menu";
import { localTime, Value } from "./Tree";
import { Spacer, useNearby } from "./VirtualList";

const FIRST_COLUMNS = 12;

export function DataTable(props: { document: DataDocument; path: Path; name: string }) {
  const { document: data, path } = props;
  const [all, setAll] = useState<string[]>([]);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [sort, setSort] = useState<Sort | undefined>();
  const [shown, setShown] = useState<{ from: number; rows: Row[] }>({ from: 0, rows: [] });
  const box = useRef<HTMLTableSectionElement>(null);
  const count = data.summary.rows ?? 0;
  const [height, setHeight] = useState(33);
  const { from, to } = useNearby(box, count, height);
  const columns = all.filter((column) => !hidden.has(column));
  const { rows } = shown;
  useEffect(() => {
    void data.columns(path).then((found) => {
      setAll(found);
      setHidden(new Set(found.slice(FIRST_COLUMNS)));
    });
  }, [data, JSON.stringify(path)]);
  useEffect(() => {
    let isCurrent = true;
    void data.rows(path, columns, sort, from, to - from).then((rows) => isCurrent && setShown({ from, rows }));
    return () => {
      isCurrent = false;
    };
  }, [data, JSON.stringify([path, columns, sort, from, to])]);
  useLayoutEffect(() => {
    const row = box.current?.querySelector<HTMLElement>("tr.line");
    if (row) setHeight(row.getBoundingClientRect().height || height);
  }, [rows]);
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
          onClick={() => void data.csv(path, columns, sort).then((file) => download(`${props.name}.csv`, file))}
        >
          CSV
        </Button>
        <span class="t3 right n">{plural(count, "row")}</span>
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
          <tbody ref={box}>
            <Spacer height={shown.from * height} />
            {rows.map((row) => (
              <tr key={row.index} class="line">
                <td class="num t3">{row.index}</td>
                {row.cells.map((cell, index) => (
                  <td key={columns[index]} class={isNumber(index) ? "num" : ""} title={localTime(cell?.text)}>
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
            <Spacer height={(count - shown.from - rows.length) * height} />
          </tbody>
        </table>
      </div>
    </>
  );
}
