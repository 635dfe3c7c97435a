"""`python -m mtplx_tui` is `mtplx-tui`."""

from mtplx_tui.cli import main

main()
