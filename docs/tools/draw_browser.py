"""Take the picture of the page that searches the help desk, docs/images/browser.png: `make example-browser` makes the page.

    python docs/tools/draw_browser.py

Needs Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
SITE, PICTURE = ROOT / "runs" / "browser", ROOT / "docs" / "images" / "browser.png"
QUESTION = "when+do+I+get+my+money+back"


def main() -> None:
    """Serve the page, and let Chromium draw it."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None or not (SITE / "index.html").is_file():
        sys.exit("This needs Chromium, and the page: make example-browser.")
    handler = partial(SimpleHTTPRequestHandler, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, TemporaryDirectory() as own:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={own}", "--hide-scrollbars"]
        options += ["--window-size=760,640", "--virtual-time-budget=8000", f"--screenshot={PICTURE}"]
        address = f"http://127.0.0.1:{server.server_port}/?q={QUESTION}"
        subprocess.run([chromium, *options, address], check=True, stderr=subprocess.DEVNULL)
        server.shutdown()


if __name__ == "__main__":
    main()
