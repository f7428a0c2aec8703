"""Screenshots of the view for the README, from the demo week: python -m tests.demo.screenshots FOLDER"""

import sys
import tempfile
from pathlib import Path

from helpers.browser import chromium, opened
from helpers.daemon import running_daemon
from helpers.view import running_view
from tests.demo.week import fill

SIZE = (1200, 760)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="clk-") as path:
        home = Path(path)
        (home / "user").mkdir()
        with running_daemon(home, HOME=str(home / "user"), XDG_DATA_HOME=str(home / "user" / "share")) as daemon:
            with daemon.connect(timeout=120) as connection:
                fill(connection)
                session = connection.call("session.list", query="Invoice totals")["sessions"][-1]["id"]
                memory = connection.call("memory.list", query="BlockWriter", scopes=["*"])["memories"][0]["id"]
            wanted = {
                "search": ("light", "/search?q=flush+before+close", ""),
                "session": ("light", f"/session?id={session}", "Edit"),
                "recall": ("dark", "/recall?try=how+do+the+exporters+flush+the+BlockWriter", ""),
                "memory": ("light", f"/memory?id={memory}", ""),
                "overview": ("dark", "/overview", ""),
            }
            with running_view(daemon) as view, chromium() as browser:
                for name, (theme, address, unfolded) in wanted.items():
                    with opened(browser, view, SIZE, theme) as watched:
                        page = watched.visit(address)
                        if unfolded == "Edit":
                            page.locator("details.tool", has_text="Edit").first.locator("summary").click()
                        page.wait_for_timeout(300)  # fonts and bars are drawn
                        page.screenshot(path=folder / f"view-{name}.png")
                        sys.stdout.write(f"{folder / f'view-{name}.png'}\n")


if __name__ == "__main__":
    main()
