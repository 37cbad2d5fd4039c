"""Whether the kernel has killed for want of memory: the ranks cannot tell, they are simply gone."""


def out_of_memory_kills() -> int:
    """How often this machine's kernel has done so since its start; -1 if it does not say (before 4.13)."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        return -1
    return -1
