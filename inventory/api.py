"""Read what a user owns."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from inventory.caches import view

OWNERS_ONLY = {"Cache-Control": "private, no-cache", "Vary": "Authorization, Accept"}


ITEM = inline_serializer(
    "InventoryItem", {"sku": serializers.CharField(), "quantity": serializers.IntegerField()}, many=True
)
INVENTORY = inline_serializer("Inventory", {"version": serializers.IntegerField(), "items": ITEM})
HEADERS = {
    "ETag": "The version, to be sent as If-Match when acting on what was seen.",
    "Cache-Control": OWNERS_ONLY["Cache-Control"],
    "Vary": OWNERS_ONLY["Vary"],
}


class InventoryView(APIView):
    """GET: what the authenticated user owns, with the version to send as If-Match when acting on it."""

    @extend_schema(
        operation_id="get_inventory",
        summary="What you own",
        parameters=[
            OpenApiParameter(
                "If-None-Match", str, OpenApiParameter.HEADER, description="The ETag you have, or several."
            ),
            *(
                OpenApiParameter(
                    name, str, OpenApiParameter.HEADER, required=True, description=told, response=[200, 304]
                )
                for name, told in HEADERS.items()
            ),
        ],
        responses={
            200: OpenApiResponse(INVENTORY, description="Your inventory, and its version."),
            304: OpenApiResponse(description="It is at the version that you have."),
        },
    )
    def get(self, request: Request) -> Response:
        owned = view.get(request.user.pk)
        headers = {**OWNERS_ONLY, "ETag": _etag(owned)}
        if headers["ETag"] in request.META.get("HTTP_IF_NONE_MATCH", ""):
            return Response(status=304, headers=headers)
        shown = {name: owned[name] for name in ("version", "items")}
        return Response(shown, headers=headers)


def _etag(owned: dict[str, Any]) -> str:
    """Name what is shown: the version, and behind a plus sign the grants on top of it."""
    granted = f"+{owned['granted']}" if owned["granted"] else ""
    return f'"{owned["version"]}{granted}"'
