"""What Pillow is for: telling what image some bytes are, and making one smaller.

Owns sniffing, the check that an image decodes to its end, scaling and re-encoding. Knows
nothing of displays and results; called by `images` alone, in a worker thread. Pillow is
imported when the first image comes: most sessions never show one.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image as PillowImage

    Pixels = PillowImage.Image

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "MPO": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
ORIGINAL = "original"
#: Pixels a side may have, as hosts and models take them.
SIDE = 2_000
ORIGINAL_SIDE = 8_000
#: Pixels that are decoded at all: 400 MB of memory at most.
MOST_PIXELS = 100_000_000
#: Images with more pixels than this are decoded one at a time.
LARGE_PIXELS = 16_000_000
JPEG_QUALITY = 85
#: A longest side below this shows nothing: then rather no image.
LEAST_SIDE = 32
_one_large = threading.Lock()


class Damaged(Exception):
    """No picture can be made of it; the text says why, to follow "not shown: "."""


@dataclass(frozen=True)
class Picture:
    """A sound image as it can be sent, and what it was before it was scaled. Sizes are pixels and bytes."""

    data: bytes
    mime_type: str
    size: tuple[int, int]
    original_mime_type: str
    original_size: tuple[int, int]
    original_bytes: int

    @property
    def cost(self) -> int:
        """Base64 characters."""
        return base64_length(len(self.data))

    @property
    def changed(self) -> bool:
        return self.size != self.original_size or self.mime_type != self.original_mime_type


def opened(raw: bytes, detail: str, share: int) -> Picture:
    """The picture in `raw`, decoded to its end; scaled when a side is too long, then to `share` base64 characters.

    Raises `Damaged` for what is no picture, or none that can be sent.
    """
    image = _open(raw)
    mime_type, size = FORMATS[image.format or ""], image.size
    if size[0] * size[1] > MOST_PIXELS:
        raise Damaged(f"its {dimensions(size)} are more than {MOST_PIXELS // 1_000_000} megapixels")
    if mime_type == "image/gif" and getattr(image, "is_animated", False):
        raise Damaged("it is animated; show one frame, or save it to a file")
    if detail == ORIGINAL and max(size) > ORIGINAL_SIDE:
        raise Damaged(f'it has {dimensions(size)}; detail "original" allows {ORIGINAL_SIDE:,} px a side')
    picture = Picture(raw, mime_type, size, mime_type, size, len(raw))
    if detail == ORIGINAL or max(size) <= SIDE:
        _decode(image)
        return picture
    return _smaller(picture, _scaled_to_side(image), share)


def fitted(picture: Picture, share: int) -> Picture:
    """The same picture in at most `share` base64 characters. Raises `Damaged` when that is no room."""
    return picture if picture.cost <= share else _smaller(picture, _scaled_to_side(_open(picture.data)), share)


def base64_length(count: int) -> int:
    return (count + 2) // 3 * 4


def dimensions(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]} px"


def _pillow() -> ModuleType:
    from PIL import Image

    # Pillow would only warn, on stderr; `MOST_PIXELS` is checked before anything is decoded.
    Image.MAX_IMAGE_PIXELS = None
    return Image


def _open(raw: bytes) -> Pixels:
    """Reads the header. Errors of decoders are of many types, so all are caught."""
    pillow = _pillow()
    try:
        return pillow.open(io.BytesIO(raw), formats=("PNG", "JPEG", "WEBP", "GIF"))
    except pillow.UnidentifiedImageError:
        raise Damaged("its bytes are no PNG, JPEG, WEBP or GIF") from None
    except Exception as error:
        raise Damaged(f"it is damaged ({error})") from error


def _decode(image: Pixels) -> None:
    with _memory(image):
        try:
            image.load()
        except Exception as error:
            raise Damaged(f"it is damaged ({error})") from error


def _scaled_to_side(image: Pixels) -> Pixels:
    """Decoded, upright, in a mode that can be scaled, with no side above `SIDE`."""
    from PIL import ImageOps

    with _memory(image):
        try:
            image.draft("RGB", (SIDE, SIDE))
            upright = _scalable(image)
            ImageOps.exif_transpose(upright, in_place=True)
            if max(upright.size) > SIDE:
                upright.thumbnail((SIDE, SIDE), _pillow().Resampling.LANCZOS, reducing_gap=2.0)
            return upright
        except Exception as error:
            raise Damaged(f"it is damaged ({error})") from error


def _memory(image: Pixels) -> threading.Lock | _NoLock:
    return _one_large if image.size[0] * image.size[1] > LARGE_PIXELS else _NoLock()


class _NoLock:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _scalable(image: Pixels) -> Pixels:
    if image.mode in ("RGB", "RGBA", "L", "LA"):
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode.startswith("I"):  # 16 bits of grey; a plain conversion would clip them
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _smaller(picture: Picture, image: Pixels, share: int) -> Picture:
    """`image` encoded so that it fits: scaled down until it does, and up again while much room is left."""
    room = max(share, 0) // 4 * 3
    best: Picture | None = None
    factor = 1.0
    for _ in range(8):
        scaled = _resized(image, factor)
        data, mime_type = _encoded(scaled, room)
        if len(data) <= room and (best is None or scaled.width > best.size[0]):
            best = replace(picture, data=data, mime_type=mime_type, size=scaled.size)
        if len(data) <= room and (factor == 1.0 or len(data) >= room * 0.8):
            break
        factor = min(1.0, factor * max(0.02, (room * 0.93 / len(data)) ** 0.5))
    if best is None or max(best.size) < min(LEAST_SIDE, max(image.size)):
        raise Damaged("this result has no room left for it")
    return best


def _resized(image: Pixels, factor: float) -> Pixels:
    if factor == 1.0:
        return image
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    return image.resize(size, _pillow().Resampling.LANCZOS, reducing_gap=2.0)


def _encoded(image: Pixels, room: int) -> tuple[bytes, str]:
    """As PNG when that fits, else as JPEG. Drawings are small as PNG, photographs and noise are not."""
    if _png_estimate(image) <= 2 * room:
        data = _saved(image, "PNG")
        if len(data) <= room:
            return data, "image/png"
    return _saved(_opaque(image), "JPEG", quality=JPEG_QUALITY), "image/jpeg"


def _png_estimate(image: Pixels) -> int:
    """From a few strips: encoding all of a large noisy image takes half a second for nothing."""
    height = max(1, image.height // 32)
    if image.height < 64:
        return 0
    strips = [image.crop((0, y, image.width, y + height)) for y in range(0, image.height - height, image.height // 4)]
    return sum(len(_saved(strip, "PNG")) for strip in strips) * image.height // (height * len(strips))


def _opaque(image: Pixels) -> Pixels:
    if image.mode in ("RGB", "L"):
        return image
    with_alpha = image.convert("RGBA")
    white = _pillow().new("RGB", image.size, "white")
    white.paste(with_alpha, mask=with_alpha.getchannel("A"))
    return white


def _saved(image: Pixels, kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
