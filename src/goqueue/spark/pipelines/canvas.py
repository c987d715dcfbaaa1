"""Canvases: rectangles, lines and text, as SVG or as the pixels of a PNG.

Both take the same three strokes in the same units, and the colors of one palette. A pixel is one byte, its index into
the palette, and zlib makes a PNG of it. Its font has 5 by 8 dots for printable ASCII; any other character is a question
mark there.
"""

import struct
import zlib
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Literal, Protocol

WHITE, INK, GREY, PALE = 0, 1, 2, 3
FIRST_OF_SERIES = 4
PALETTE = (
    *("#ffffff", "#1f2933", "#7b8794", "#e4e7eb"),
    *("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f"),
)

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


class Canvas(Protocol):
    """What can be drawn on: colors are indexes into the palette."""

    def box(self, x: float, y: float, width: float, height: float, color: int) -> None: ...
    def line(self, points: Sequence[Point], color: int, thickness: float) -> None: ...
    def write(self, x: float, y: float, text: str, anchor: Anchor, color: int) -> None: ...


class Vectors:
    """Draws SVG."""

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, color: int) -> None:
        size = f'width="{width:.1f}" height="{height:.1f}"'
        self._parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{PALETTE[color]}"/>')

    def line(self, points: Sequence[Point], color: int, thickness: float) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        stroke = f'stroke="{PALETTE[color]}" stroke-width="{thickness:g}"'
        self._parts.append(f'<polyline points="{path}" fill="none" {stroke}/>')

    def write(self, x: float, y: float, text: str, anchor: Anchor, color: int) -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{PALETTE[color]}"'
        self._parts.append(f"<text {place}>{escape(_printable(text))}</text>")

    def text(self) -> str:
        """The drawing."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._height}"'
        style = f'style="background:{PALETTE[WHITE]}" font-family="sans-serif" font-size="13"'
        return "\n".join((f"{head} {style}>", *self._parts, "</svg>"))


class Pixels:
    """Draws pixels, two for each unit."""

    SCALE = 2
    DOT = 3  # pixels to a dot of the font

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width * self.SCALE, height * self.SCALE
        self._rows = [bytearray(self._width) for _ in range(self._height)]

    def box(self, x: float, y: float, width: float, height: float, color: int) -> None:
        left, top, right, bottom = (round(edge * self.SCALE) for edge in (x, y, x + width, y + height))
        self._fill(left, top, right, bottom, color)

    def line(self, points: Sequence[Point], color: int, thickness: float) -> None:
        pen = max(1, round(thickness * self.SCALE))
        scaled = [(x * self.SCALE, y * self.SCALE) for x, y in points]
        for (x0, y0), (x1, y1) in pairwise(scaled):
            if y0 == y1:
                self._fill(round(x0), round(y0) - pen // 2, round(x1), round(y0) - pen // 2 + pen, color)
                continue
            steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
            for step in range(steps + 1):
                x = round(x0 + (x1 - x0) * step / steps) - pen // 2
                y = round(y0 + (y1 - y0) * step / steps) - pen // 2
                self._fill(x, y, x + pen, y + pen, color)

    def write(self, x: float, y: float, text: str, anchor: Anchor, color: int) -> None:
        advance = 6 * self.DOT
        width = len(text) * advance
        left = round(x * self.SCALE) - {"start": 0, "middle": width // 2, "end": width}[anchor]
        top = round(y * self.SCALE) - 7 * self.DOT
        for place, character in enumerate(text):
            code = ord(character) if " " <= character <= "~" else ord("?")
            glyph = FONT[5 * (code - 32) : 5 * (code - 31)]
            for column, dots in enumerate(glyph):
                for row in range(8):
                    if dots >> row & 1:
                        dot_x, dot_y = left + place * advance + column * self.DOT, top + row * self.DOT
                        self._fill(dot_x, dot_y, dot_x + self.DOT, dot_y + self.DOT, color)

    def png(self) -> bytes:
        """The picture."""
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, 3, 0, 0, 0)
        palette = b"".join(bytes.fromhex(color[1:]) for color in PALETTE)
        pixels = zlib.compress(b"".join(b"\0" + row for row in self._rows), 6)
        chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", pixels), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks
        )

    def _fill(self, left: int, top: int, right: int, bottom: int, color: int) -> None:
        left, right = max(0, left), min(self._width, right)
        if left < right:
            stroke = bytes([color]) * (right - left)
            for row in self._rows[max(0, top) : max(0, min(self._height, bottom))]:
                row[left:right] = stroke


def _printable(text: str) -> str:
    """The text without what XML cannot hold."""
    return "".join(character if character.isprintable() else "?" for character in text)


# Five columns to a character from the blank to the tilde, the lowest bit on top.
FONT = bytes.fromhex(
    "000000000000005f00000007000700147f147f14242a7f2a12231308646236495522500005030000001c2241000041221c0014083e0814"
    "08083e080800503000000808080808006060000020100804023e5149453e00427f400042615149462141454b311814127f102745454539"
    "3c4a49493001710905033649494936064949291e003636000000563600000814224100141414141400412214080201510906324979413e"
    "7e1111117e7f494949363e414141227f4141221c7f494949417f090909013e4149497a7f0808087f00417f41002040413f017f08142241"
    "7f404040407f020c027f7f0408107f3e4141413e7f090909063e4151215e7f09192946464949493101017f01013f4040403f1f2040201f"
    "3f4038403f631408146307087008076151494543007f41410002040810200041417f000402010204404040404000010204002054545478"
    "7f484444383844444420384444487f3854545418087e09010218a4a4a47c7f0804047800447d40004080847d007f1028440000417f4000"
    "7c041804787c080404783844444438fc2424241818242424fc7c080404084854545420043f4440203c4040207c1c2040201c3c4030403c"
    "44281028441ca0a0a07c4464544c44000836410000007f000000413608000804081008"
)
assert len(FONT) == 5 * 95
