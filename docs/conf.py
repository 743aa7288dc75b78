"""Sphinx's settings for the site: ``make docs`` builds it, and ``make docs-serve`` shows it."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "mpwds"
copyright = "the authors of mpwds"
release = metadata.version("mpwds")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "api_reference",
    "command_reference",
    "report",
]
exclude_patterns = ["_extensions"]

myst_enable_extensions = ["attrs_inline", "deflist"]
myst_heading_anchors = 4

autosummary_generate = False
autodoc_typehints = "none"  # the docstrings give types and shapes
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Source", "While iterating"]
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = "mpwds"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# `make linkcheck`. Other sites may be slow, or refuse a request now and then.
linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_rate_limit_timeout = 60
# Addresses of this machine. Add those that need a login.
linkcheck_ignore = [r"https?://(127\.0\.0\.1|localhost)\b"]
