"""Encodes pictures as an MP4 file (H.264) by PyAV, which brings its own FFmpeg: `podrace[video]`."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.video.stream import VideoStream
from PIL import Image

CODEC = "libx264"
QUALITY = "20"
"""Constant rate factor of x264: 0 is lossless, 23 its default."""


def write_video(path: Path, pictures: Sequence[Image.Image], frames_per_second: float) -> None:
    """Writes pictures of one size as an MP4 file that browsers play.

    A last row or column that makes a side odd is cut off: the color format that every player of H.264 knows (4:2:0)
    needs even sides.

    Args:
        path: The file; its name needs no suffix.
        pictures: At least one.
        frames_per_second: How fast they are shown.
    """
    width, height = (side - side % 2 for side in pictures[0].size)
    # The index at the front: a browser plays the file while it loads.
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        rate = Fraction(frames_per_second).limit_denominator(1000)
        stream = cast(VideoStream, container.add_stream(CODEC, rate, {"crf": QUALITY}))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in pictures:
            shown = picture.convert("RGB").crop((0, 0, width, height))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(shown), format="rgb24")))
        container.mux(stream.encode())
