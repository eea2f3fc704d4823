"""The receipt: an e-mail, the sample of an effect that nobody can look up."""

import smtplib
from email.utils import make_msgid
from typing import Any

from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage, get_connection

from payments.models import Order
from tasks.retry import CallFailed

DEPENDENCY = "mail"
TIMEOUT_SECONDS = 20.0  # EMAIL_TIMEOUT is shorter
TEXT = """Thank you for your order {number}.

{quantity} of {name}: {amount}

It is paid."""


def written(user_id: int, number: str, *, operation_id: str) -> dict[str, Any] | None:
    """Write the letter as JSON, to be frozen; None: the customer has no address, or there is no order."""
    customer = get_user_model().objects.filter(pk=user_id).first()
    order = Order.objects.select_related("product").filter(owner_id=user_id, number=number).first()
    if customer is None or not customer.email or order is None:
        return None
    amount = f"{order.amount_minor} {order.currency} (minor units)"
    return {
        "to": customer.email,
        "subject": f"Your order {number}",
        "text": TEXT.format(number=number, quantity=order.quantity, name=order.product.name, amount=amount),
        "message_id": make_msgid(idstring=operation_id, domain="teguh"),
    }


def send(key: str, letter: dict[str, Any]) -> dict[str, Any]:
    """Hand a letter to the mail server.

    Raises:
        CallFailed: with what is certain: until the server has taken the whole letter, nothing is sent.
    """
    message = EmailMessage(
        letter["subject"], letter["text"], to=[letter["to"]], headers={"Message-ID": letter["message_id"]}
    )
    line = get_connection()
    _open(line)
    try:
        line.send_messages([message])
    except smtplib.SMTPRecipientsRefused as error:
        raise CallFailed(
            "invalid_input", "nobody has that address", DEPENDENCY, certainty="refused"
        ) from error
    except smtplib.SMTPResponseException as error:
        category = "dependency_unavailable" if error.smtp_code < 500 else "invalid_input"
        certainty = "not_sent" if error.smtp_code < 500 else "refused"
        raise CallFailed(category, f"SMTP {error.smtp_code}", DEPENDENCY, certainty=certainty) from error
    except (smtplib.SMTPException, OSError) as error:
        raise CallFailed("outcome_unknown", type(error).__name__, DEPENDENCY) from error
    finally:
        _close(line)
    return {"message_id": letter["message_id"]}


def _open(line: Any) -> None:
    try:
        line.open()
    except (smtplib.SMTPException, OSError) as error:
        raise CallFailed(
            "dependency_unavailable", type(error).__name__, DEPENDENCY, certainty="not_sent"
        ) from error


def _close(line: Any) -> None:
    """Say good-bye; the letter is where it is, whatever is answered."""
    try:
        line.close()
    except (smtplib.SMTPException, OSError):
        return
