"""`python -m clankers.ctl`."""

from clankers.ctl import main

main()
