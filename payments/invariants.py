"""What must hold of orders, charges and the ledger: what `manage.py verify` looks for here.

Each is (invariant, what is wrong, a query whose first column names it).
"""

CHECKS = (
    (
        "I2",
        "an order has more than one live charge",
        """SELECT order_id FROM payments_payment
        WHERE kind = 'charge' AND status IN ('pending', 'authorized', 'captured')
        GROUP BY order_id HAVING count(*) > 1""",
    ),
    (
        "I2",
        "a charge is undecided although its operation is over",
        """SELECT p.id FROM payments_payment AS p JOIN operations_operation AS o ON o.id = p.operation_id
        WHERE p.kind = 'charge' AND p.status IN ('pending', 'authorized') AND (
            o.status IN ('succeeded', 'ignored') OR o.status = 'failed_permanent' AND NOT EXISTS (
                SELECT FROM operations_effect AS e WHERE e.operation_id = o.id AND e.undone_at IS NULL
                    AND e.certainty IN ('maybe_sent', 'confirmed')))""",
    ),
    (
        "I6",
        "a captured charge is not in the ledger with its amount, or the ledger has one that is not captured",
        """SELECT COALESCE(p.id::text, 'entry ' || e.id) FROM
            (SELECT * FROM payments_payment WHERE kind = 'charge' AND status = 'captured') AS p
        FULL JOIN (SELECT * FROM payments_ledgerentry WHERE kind = 'capture') AS e
            ON e.operation_id = p.operation_id AND e.order_id = p.order_id
        WHERE p.id IS NULL OR e.id IS NULL OR e.amount_minor <> p.amount_minor""",
    ),
    (
        "I6",
        "an order is paid without a captured charge, or has one and is not paid",
        """SELECT o.id FROM payments_order AS o LEFT JOIN payments_payment AS p
            ON p.order_id = o.id AND p.kind = 'charge' AND p.status = 'captured'
        WHERE (o.status IN ('paid', 'refunded')) <> (p.id IS NOT NULL)""",
    ),
    (
        "I6",
        "more went back than was taken",
        """SELECT order_id FROM payments_ledgerentry GROUP BY order_id
        HAVING sum(CASE kind WHEN 'capture' THEN amount_minor ELSE -amount_minor END) < 0""",
    ),
    (
        "I6",
        "goods are set aside for an operation that ended without them",
        """SELECT r.id FROM payments_reservation AS r JOIN operations_operation AS o ON o.id = r.operation_id
        WHERE r.released_at IS NULL AND o.status = 'ignored'""",
    ),
)
