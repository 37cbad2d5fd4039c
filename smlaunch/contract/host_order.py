"""The order of a job's hosts."""

import re
from typing import List, Union


def natural_sort_key(name: str) -> List[Union[int, str]]:
    """Sort key that puts algo-2 before algo-10. Digits and other text alternate, so two keys can always be
    compared.
    """
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", name))]
