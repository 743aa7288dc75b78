"""The command ``mpwds``: :mod:`mpwds.cli.app` lists its commands, :mod:`mpwds.cli.main` runs them."""
