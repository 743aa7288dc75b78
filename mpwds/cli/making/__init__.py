"""Commands that make datasets: ``create``, ``convert``, ``index`` and ``bench``."""
