"""Diagrams: the path of a call, the hub, and access control."""

from __future__ import annotations

from bench.pictures.drawing import DARK, LIGHT, Drawing, Theme


def call(theme: Theme) -> Drawing:
    """Draw the path of a call, from `execute` to its envelope."""
    picture = Drawing(860, 340, theme, "The path of a call")
    picture.text(430, 34, 'await registry.execute("shop.quote", {"item": "tea"})', mono=True)
    steps = (
        ("1. Find", "the operation by id"),
        ("2. Intercept", "log, cache, retry"),
        ("3. Validate", "the input"),
        ("4. Run", "the handler"),
        ("5. Normalise", "and check the result"),
    )
    for index, lines in enumerate(steps):
        x = 20 + index * 168
        picture.box(x, 60, 148, 60, *lines, strong=index == 3)
        if index:
            picture.arrow((x - 20, 90), (x, 90))
    handlers = (
        ("Python function", "in a task or thread"),
        ("HTTP request", "from OpenAPI"),
        ("MCP tool", "over stdio or HTTP"),
        ("Remote worker", "hub, Redis or NATS"),
    )
    picture.arrow((598, 120), (598, 150), (94, 150), (94, 170))
    for index, lines in enumerate(handlers):
        x = 20 + index * 168
        picture.box(x, 170, 148, 56, *lines)
        if index:
            picture.arrow((x + 74, 150), (x + 74, 170))
    picture.arrow((766, 120), (766, 262))
    picture.box(
        20,
        262,
        820,
        60,
        "ResponseEnvelope",
        "data: normalised to the output schema     meta: HTTP status and headers, or MCP content blocks and error flag",
        strong=True,
    )
    picture.text(690, 245, "or one CallError", size=12, colour=theme.bad)
    return picture


def hub(theme: Theme) -> Drawing:
    """Draw a hub with a caller, two workers and a nested call."""
    picture = Drawing(860, 350, theme, "A hub, a caller and two workers")
    picture.box(
        330,
        120,
        200,
        110,
        "Hub",
        "authenticates tokens",
        "sets the caller's identity",
        "routes by operation",
        strong=True,
    )
    picture.box(30, 130, 180, 90, "Caller", "token of ada", "scope buy")
    picture.box(650, 30, 180, 90, "Worker", "shop.price", "namespace shop")
    picture.box(650, 230, 180, 90, "Worker", "rates.get", "namespace rates")
    picture.arrow((210, 160), (330, 160), colour=theme.accent)
    picture.text(270, 150, "1. shop.price", size=12)
    picture.arrow((330, 195), (210, 195))
    picture.text(270, 214, "6. envelope", size=12)
    picture.arrow((530, 140), (650, 60), colour=theme.accent)
    picture.text(560, 84, "2. as ada, with a grant", size=12, anchor="end")
    picture.arrow((650, 96), (530, 165), colour=theme.accent, dashed=True)
    picture.text(612, 146, "3. nested call", size=12, anchor="start")
    picture.arrow((530, 195), (650, 260), colour=theme.accent, dashed=True)
    picture.text(612, 226, "4. still as ada", size=12, anchor="start")
    picture.arrow((650, 295), (530, 222))
    picture.text(560, 272, "5. result", size=12, anchor="end")
    picture.text(
        430, 335, "Every process connects to the hub; none needs an open port but the hub.", size=12, colour=theme.faint
    )
    return picture


def access(theme: Theme) -> Drawing:
    """Draw access control: trusted code, authenticated callers and nested calls."""
    picture = Drawing(860, 450, theme, "Who may do what")
    rows = (
        ("Code in the process", "holds the registry", "trusted", "no check", "runs"),
        ("Caller with the scope", "hub, signed request", "its identity", "scopes, resources", "runs"),
        ("Its nested calls", "context.env", "same identity", "checked again", "runs"),
        ("Caller without it", "hub, signed request", "its identity", "scope missing", "ACCESS_DENIED"),
        ("No valid token", "at a hub", "nobody", "no connection", "HTTP 401"),
    )
    for x, title in ((110, "Who calls"), (360, "Runs as"), (590, "Access check"), (785, "Outcome")):
        picture.text(x, 34, title, size=13, bold=True, colour=theme.faint)
    for index, (who, how, identity, check, outcome) in enumerate(rows):
        y = 50 + index * 80
        picture.box(20, y, 190, 62, who, how)
        picture.box(280, y, 160, 62, identity, strong=index in (1, 2))
        picture.box(500, y, 180, 62, check)
        colour = theme.bad if index > 2 else theme.good
        picture.text(785, y + 36, outcome, size=13, bold=True, colour=colour)
        picture.arrow((210, y + 31), (280, y + 31))
        picture.arrow((440, y + 31), (500, y + 31))
        picture.arrow((680, y + 31), (715, y + 31), colour=colour)
    picture.arrow((360, 192), (360, 210), colour=theme.accent, dashed=True)
    return picture


def pictures() -> dict[str, str]:
    """Return every diagram in both themes, by file name."""
    draw = {"call": call, "hub": hub, "access": access}
    return {
        f"{name}-{theme.name}.svg": function(theme).svg() for name, function in draw.items() for theme in (LIGHT, DARK)
    }
