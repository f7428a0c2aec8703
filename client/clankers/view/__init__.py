"""The web view: a page on the loopback interface that shows what the daemon stores. Loaded by `clankers-ctl view`."""
