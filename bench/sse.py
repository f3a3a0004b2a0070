"""Parsing Server-Sent Events: against launchdarkly-eventsource, httpx-sse and httpx2, over the same chunks.

`python -m bench.sse`
"""

from __future__ import annotations

import codecs
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from bench.comparisons import Comparison, keep
from bench.measure import report, save
from operations.sources.openapi.sse import SSEParser

Parse = Callable[[list[bytes]], int]

OWN = "operations"
CHUNK_SIZES = (1024, 16 * 1024, 64 * 1024)


def parse_own(chunks: list[bytes]) -> int:
    parser = SSEParser()
    count = 0
    for chunk in chunks:
        count += len(parser.feed(chunk))
    parser.close()
    return count


def contenders() -> dict[str, Parse]:
    """Return our parser and each installed peer."""
    found: dict[str, Parse] = {OWN: parse_own}
    peers = {
        "launchdarkly-eventsource": ("ld_eventsource.reader", launchdarkly),
        "httpx-sse": ("httpx_sse._decoders", httpx_sse),
        "httpx2": ("httpx2._sse", httpx2),
    }
    for name, (module, make) in peers.items():
        try:
            found[name] = make(importlib.import_module(module))
        except (ImportError, AttributeError) as error:
            print(f"skipping {name}: {error}")
    return found


def launchdarkly(module: Any) -> Parse:
    lines_from, reader, event = module._BufferedLineReader.lines_from, module._SSEReader, module.Event

    def parse(chunks: list[bytes]) -> int:
        return sum(type(action) is event for action in reader(lines_from(chunks)).events_and_comments())

    return parse


def httpx_sse(module: Any) -> Parse:
    def parse(chunks: list[bytes]) -> int:
        lines, events = module.SSELineDecoder(), module.SSEDecoder()
        return sum(events.decode(line) is not None for line in chain.from_iterable(map(lines.decode, _texts(chunks))))

    return parse


def httpx2(module: Any) -> Parse:
    def parse(chunks: list[bytes]) -> int:
        parser = module._SSEParser()
        return sum(1 for _ in chain.from_iterable(map(parser.decode, _texts(chunks))))

    return parse


def _texts(chunks: list[bytes]) -> Iterator[str]:
    """Yield the decoded chunks, as a response's `iter_text` does."""
    return filter(None, map(codecs.getincrementaldecoder("utf-8")("replace").decode, chunks))


def streams() -> dict[str, list[bytes]]:
    """Return typical server streams, each as a list of blocks."""
    words = ["The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", "."] * 100
    foreign = ["素早い", "茶色の", "狐が", " über", " naïve", " —", "🦊", "犬を", "飛び", "越える"] * 100
    plain = [_block(_token(word)) for word in words]
    row = {"name": "x" * 30, "value": 1.5, "tags": ["a", "b", "c"]}
    return {
        "token stream, `data` only": plain,
        "token stream, `event` and `data`": [_block(_token(word), "content_block_delta") for word in words],
        "token stream, `id`, `event`, `data`": [
            _block(_token(word), "message", f"s1_{index}") for index, word in enumerate(words)
        ],
        "token stream, no space after `data:`": [block.replace(b"data: ", b"data:", 1) for block in plain],
        "token stream, CRLF": [block.replace(b"\n", b"\r\n") for block in plain],
        "token stream, not ASCII": [_block(_token(word)) for word in foreign],
        "JSON over many lines of `data`": [_block(json.dumps([row] * 4, indent=2))] * 500,
        "large events (10 to 100 kB)": [_block(json.dumps([row] * count)) for count in range(130, 1300, 60)],
    }


def _token(word: str) -> str:
    delta = {"id": "chatcmpl-9x", "object": "chat.completion.chunk", "created": 1700000000, "model": "m-1"}
    choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
    return json.dumps(delta | {"choices": [choice]}, ensure_ascii=False)


def _block(data: str, type: str = "", id: str = "") -> bytes:
    lines = [f"id: {id}"] if id else []
    lines += [f"event: {type}"] if type else []
    lines += [f"data: {line}" for line in data.split("\n")]
    return "".join(line + "\n" for line in [*lines, ""]).encode()


def chunkings(blocks: list[bytes]) -> dict[str, list[bytes]]:
    """Return the same stream, divided into chunks in several ways."""
    whole = b"".join(blocks)
    cut = {
        f"chunks of {size // 1024} kB": [whole[start : start + size] for start in range(0, len(whole), size)]
        for size in CHUNK_SIZES
    }
    return {"one event a chunk": blocks} | cut


def time_parses(
    parses: Mapping[str, Parse], chunks: list[bytes], *, rounds: int = 25, passes: int = 1
) -> dict[str, float]:
    """Return the CPU seconds of one pass over the chunks: the median over interleaved rounds."""
    samples: dict[str, list[float]] = {name: [] for name in parses}
    for _ in range(rounds):
        for name, parse in parses.items():
            start = time.process_time()
            for _ in range(passes):
                parse(chunks)
            samples[name].append((time.process_time() - start) / passes)
    return {name: statistics.median(taken) for name, taken in samples.items()}


def measure(parses: Mapping[str, Parse], title: str, blocks: list[bytes]) -> dict[str, dict[str, float]]:
    """Return the rate of each contender in MB/s, for each way of dividing the stream into chunks."""
    rates: dict[str, dict[str, float]] = {}
    size = sum(map(len, blocks))
    for cut, chunks in chunkings(blocks).items():
        for name, parse in parses.items():
            if parse(chunks) != len(blocks):
                raise RuntimeError(f"{name} does not find the {len(blocks)} events of {title}, {cut}")
        times = time_parses(parses, chunks)
        rates[cut] = {name: size / taken / 1e6 for name, taken in times.items()}
        report(f"{title}; {cut}; ours {rates[cut][OWN]:.0f} MB/s; time as a multiple of ours", times, OWN)
    return rates


def main() -> None:
    """Measure, print the ratios and save the results."""
    parses = contenders()
    rates = {title: measure(parses, title, blocks) for title, blocks in streams().items()}
    print("\nour rate as a multiple of each peer's, over all streams and chunks:")
    verdicts: dict[str, dict[str, float]] = {}
    for peer in [name for name in parses if name != OWN]:
        ratios = sorted(row[OWN] / row[peer] for cuts in rates.values() for row in cuts.values())
        verdicts[peer] = {"least": ratios[0], "median": statistics.median(ratios), "most": ratios[-1]}
        print(f"  {peer}: " + ", ".join(f"{name} {ratio:.1f}" for name, ratio in verdicts[peer].items()))
    save("sse", {"megabytes per second": rates, "our rate as a multiple of": verdicts})
    keep(
        "bench.sse",
        (
            Comparison("Parse server-sent events, worst case", peer, "faster", ratios["least"], at_least=1.3)
            for peer, ratios in verdicts.items()
        ),
    )


if __name__ == "__main__":
    main()
