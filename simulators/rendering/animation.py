"""Collects pictures of an episode of unknown length, and writes them as an animated file or a video."""

from pathlib import Path

from PIL import Image

SIZE = 480
"""Longest side of a picture, in pixels."""
VIDEO = ".mp4"
"""Suffix of files that another library writes."""


class Animation:
    """Keeps at most a given number of pictures, evenly spread: when there are too many, every second one is dropped.

    animation = Animation(most=300)
    for picture in episode:
        animation.add(picture)
    animation.write(Path("episode.gif"), frames_per_second=30.0, suffix=".gif")

    Attributes:
        most: Most pictures of the file.
    """

    def __init__(self, most: int) -> None:
        """Creates an animation without pictures.

        Args:
            most: Most pictures of the file, at least 2.
        """
        self.most, self._stride, self._seen = most, 1, 0
        self._pictures: list[Image.Image] = []

    def __len__(self) -> int:
        return len(self._pictures)

    @property
    def wants_next(self) -> bool:
        """Whether the next picture is kept; drawing one that is not kept would waste time."""
        return self._seen % self._stride == 0

    def skip(self) -> None:
        """Leaves out the next picture."""
        self._seen += 1

    def add(self, picture: Image.Image) -> None:
        """Adds the next picture, reduced to `SIZE` and to 256 colors."""
        self._seen += 1
        picture.thumbnail((SIZE, SIZE))
        self._pictures.append(picture.quantize())
        if len(self._pictures) > self.most:
            self._pictures, self._stride = self._pictures[::2], 2 * self._stride

    def write(self, path: Path, frames_per_second: float, suffix: str) -> None:
        """Writes all pictures as one file.

        Args:
            path: The file.
            frames_per_second: How fast they are shown, before any were left out.
            suffix: `.gif`, `.webp`, or `.mp4`, which needs PyAV.
        """
        if suffix == VIDEO:
            from simulators.rendering.video import write_video

            write_video(path, self._pictures, frames_per_second / self._stride)
            return
        first, *others = self._pictures
        milliseconds = max(20, round(1000 * self._stride / frames_per_second))
        format_name = suffix.removeprefix(".").upper()
        first.save(path, format_name, save_all=True, append_images=others, duration=milliseconds, loop=0)
