"""What a client says it knows: If-None-Match and If-Match (RFC 9110, section 13.1)."""


def names(header: str, etag: str) -> bool:
    """Say whether a header names an ETag, or says `*`. Compares weakly: our ETags are weak."""
    if header.strip() == "*":
        return True
    given = (tag.strip().removeprefix("W/") for tag in header.split(","))
    return etag.removeprefix("W/") in given
