"""Tell the agent when this kernel's memory passes a limit, and when it is below it again."""

import threading

import psutil

MEMORY_ALARM_BYTES = 512 * 1024**2
_stop = threading.Event()


def _watch_memory() -> None:
    process, above = psutil.Process(), False
    while not _stop.wait(0.5):
        used = process.memory_info().rss
        if (used > MEMORY_ALARM_BYTES) != above:
            above = not above
            where = "past" if above else "below"
            loommux.notify(f"memory {used / 1024**2:.0f} MiB, {where} {MEMORY_ALARM_BYTES / 1024**2:.0f} MiB")


threading.Thread(target=_watch_memory, name="memory alarm", daemon=True).start()
