"""A process that dies in the middle of long work loses what it knew, and starting over pays for the finished twice.
With satay every finished task is in a journal on disk, so starting the run again goes on where it was.

Run:    python recipes/01_crash_and_resume.py

Prints:
    process 1
      download episode 7
      transcribe 48 minutes of audio
      summarize ... and the power fails
    process 1 ended with SIGKILL

    process 2
      summarize
      result: a summary of the words of episode 7
    process 2 ended well

    what the journal holds
       1  WorkflowCreated
       2  TaskScheduled       download
       3  TaskCompleted
       4  TaskScheduled       transcribe
       5  TaskCompleted
       6  TaskScheduled       summarize
       7  WorkflowResumed
       8  TaskAttemptStarted
       9  TaskCompleted
      10  WorkflowCompleted
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

import satay


@satay.task
async def download(episode: int) -> str:
    print(f"  download episode {episode}", flush=True)
    return f"episode {episode}"


@satay.task
async def transcribe(audio: str) -> str:
    print("  transcribe 48 minutes of audio", flush=True)
    return f"the words of {audio}"


@satay.task
async def summarize(words: str) -> str:
    if "--power-fails" in sys.argv:
        print("  summarize ... and the power fails", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    print("  summarize", flush=True)
    return f"a summary of {words}"


@satay.workflow
async def process_episode(episode: int) -> str:
    audio = await download(episode)
    words = await transcribe(audio)
    return await summarize(words)


async def work(data_dir: str) -> None:
    """The same lines begin the run and, if it is there already, go on with it."""
    async with satay.run_app(data_dir=data_dir):
        handle = satay.start(process_episode, 7, run_id="episode-7")
        print(f"  result: {await handle.result()}")


async def show_journal(data_dir: str) -> None:
    async with satay.run_app(data_dir=data_dir) as app:
        async for event in app.events("episode-7"):
            print(f"  {event.seq:>2}  {event.type:<18}  {event.data.get('task', '')}".rstrip())


def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        for number, options in enumerate((["--power-fails"], []), start=1):
            print(f"process {number}", flush=True)
            process = subprocess.run([sys.executable, __file__, data_dir, *options])
            ending = "well" if process.returncode == 0 else f"with {signal.Signals(-process.returncode).name}"
            print(f"process {number} ended {ending}\n", flush=True)
        print("what the journal holds")
        asyncio.run(show_journal(data_dir))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
    else:
        main()
