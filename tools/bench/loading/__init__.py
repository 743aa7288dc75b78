"""Parts of ``tools/bench/loader.py``. None of them imports torch or a peer before it is used: other
libraries' workers may import them again, and would pay for it."""
