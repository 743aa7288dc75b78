"""The command ``mpwds``: one module per subcommand, and :mod:`mpwds.cli.main`, which finds them."""
