"""What a feed shows.

``watching.py`` reads statuses, ``figures.py`` makes rates and a diagnosis of them, ``rows.py`` words them,
and ``page.py`` shows them in a browser.
"""
