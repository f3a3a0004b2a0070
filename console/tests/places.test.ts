import { expect, it } from "vitest";
import { foldsOf, placesOf } from "../src/json/places";

const TEXT = JSON.stringify({ a: 1, "b/c": [true, { d: "x:,{" }, []], e: {}, f: [[1], [2, 3]] }, null, 2);
const at = (pointer: string) => {
  const place = placesOf(TEXT, new Set([pointer])).get(pointer);
  return place && TEXT.slice(place.from, place.to);
};

it("finds the place of each value by its pointer", () => {
  expect(at("")).toBe(TEXT);
  expect(at("/a")).toBe("1");
  expect(at("/b~1c/0")).toBe("true");
  expect(at("/b~1c/1/d")).toBe('"x:,{"');
  expect(at("/b~1c/2")).toBe("[]");
  expect(at("/e")).toBe("{}");
  expect(at("/f/1/1")).toBe("3");
  expect(at("/nothing")).toBeUndefined();
});

it("finds many places at once, and none in a text that is no JSON", () => {
  expect([...placesOf(TEXT, new Set(["/f/0/0", "/a"])).keys()]).toEqual(["/a", "/f/0/0"]);
  expect(placesOf('{"a": {"b": }]', new Set(["/a/b"])).size).toBe(0);
});

it("folds objects and arrays of several lines, the outer one if two begin on one line", () => {
  const folds = [...foldsOf('{\n  "a": [{\n    "b": 1\n  }],\n  "c": []\n}')];
  expect(folds.map(([line]) => line).sort((left, right) => left - right)).toEqual([0, 2]);
  const text = '{\n  "a": [{\n    "b": 1\n  }],\n  "c": []\n}';
  const inner = folds.find(([line]) => line === 2)?.[1];
  expect(text.slice(inner?.from, inner?.to)).toBe('{\n    "b": 1\n  }');
  expect(foldsOf('{"a": [1, 2]}').size).toBe(0);
});
