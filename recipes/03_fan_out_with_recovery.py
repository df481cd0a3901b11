"""Work on many items is cut off in the middle, and doing all of it again would take as long as the first time.
`satay.map` records each item under a key of its own, so that the next process works only on what is missing.

Run:    python recipes/03_fan_out_with_recovery.py

Prints:
    process 1 makes 7 thumbnails, 2 at a time
      ant (12 megapixels)
      bee (16 megapixels)
      cat (9 megapixels)
      dune (480 megapixels)
      elm (520 megapixels)
    process 1 was killed: two huge photos at a time need more memory than there is

    process 2 has more memory
      dune (480 megapixels)
      elm (520 megapixels)
      fox (12 megapixels)
      gull (20 megapixels)
    all of them, in the order of the photos: ant bee cat dune elm fox gull
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import satay


@dataclass(frozen=True)
class Photo:
    name: str
    megapixels: int


PHOTOS = [
    Photo("ant", 12),
    Photo("bee", 16),
    Photo("cat", 9),
    Photo("dune", 480),
    Photo("elm", 520),
    Photo("fox", 12),
    Photo("gull", 20),
]

two_huge_photos = asyncio.Barrier(2)


@satay.task
async def make_thumbnail(photo: Photo) -> str:
    print(f"  {photo.name} ({photo.megapixels} megapixels)", flush=True)
    if photo.megapixels > 100 and "--little-memory" in sys.argv:
        await two_huge_photos.wait()
        os.kill(os.getpid(), signal.SIGKILL)  # What an operating system does when memory runs out.
    return photo.name


@satay.workflow
async def make_thumbnails(photos: list[Photo]) -> list[str]:
    return await satay.map(make_thumbnail, photos, key=lambda photo: photo.name, concurrency=2)


async def work(data_dir: str) -> None:
    async with satay.run_app(data_dir=data_dir):
        names = await satay.start(make_thumbnails, PHOTOS, run_id="holiday").result()
        print("all of them, in the order of the photos:", *names)


def run_process(*options: str) -> None:
    """Run this program again as a process that can be killed without ending this one."""
    subprocess.run([sys.executable, __file__, *options])


def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        print(f"process 1 makes {len(PHOTOS)} thumbnails, 2 at a time", flush=True)
        run_process(data_dir, "--little-memory")
        print("process 1 was killed: two huge photos at a time need more memory than there is\n")

        print("process 2 has more memory", flush=True)
        run_process(data_dir)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
    else:
        main()
