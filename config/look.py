"""How the admin looks: the whole of django-unfold's settings. Colours are OKLCH, light to dark."""

from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static

SHADES = ("50", "100", "200", "300", "400", "500", "600", "700", "800", "900", "950")
# Tailwind's "sky", https://tailwindcss.com/docs/colors: calm, and none of the colours that mean a status.
PRIMARY = (
    "oklch(97.7% .013 236.62)",
    "oklch(95.1% .026 236.824)",
    "oklch(90.1% .058 230.902)",
    "oklch(82.8% .111 230.318)",
    "oklch(74.6% .16 232.661)",
    "oklch(68.5% .169 237.323)",
    "oklch(52% .135 242.749)",
    "oklch(47% .125 242.749)",
    "oklch(44.3% .11 240.79)",
    "oklch(39.1% .09 240.876)",
    "oklch(29.3% .066 243.157)",
)


def stylesheet(request: HttpRequest) -> str:
    return static("operations/admin.css")


def unfold(*, environment: str) -> dict[str, Any]:
    """Give the UNFOLD setting. What belongs to an app is named by its path: config imports none of them."""
    return {
        "SITE_TITLE": "Teguh",
        "SITE_HEADER": "Teguh",
        "SITE_SUBHEADER": environment,
        "SITE_SYMBOL": "deployed_code",
        "SITE_URL": None,
        "SHOW_HISTORY": False,  # that is Django's log of edits; acts are in the audit
        "SHOW_VIEW_ON_SITE": False,
        "STYLES": [stylesheet],
        "COLORS": {"primary": dict(zip(SHADES, PRIMARY, strict=True))},
        "DASHBOARD_CALLBACK": "operations.admin.dashboard.overview",
        "SIDEBAR": {"navigation": "operations.admin.menu.navigation"},
    }
