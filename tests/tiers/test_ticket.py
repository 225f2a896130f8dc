"""A ticket has an answer by its deadline, whatever happens elsewhere."""

from __future__ import annotations

import threading
import time

from irminsul.tiers import Ticket


def test_answers_in_any_order() -> None:
    ticket = Ticket(3, 0, 10.0)
    assert not ticket.done
    assert ticket.settle(2, 30)
    assert ticket.settle(0, 10)
    assert ticket.result(0) == [10, 0, 30]
    assert not ticket.settle(0, 11)
    assert ticket.settle(1, 20)
    assert ticket.done
    assert not ticket.expired
    assert ticket.result() == [10, 20, 30]


def test_nothing_to_answer_is_done() -> None:
    assert Ticket(0, 0, 10.0).done


def test_late_answers_do_not_count() -> None:
    ticket = Ticket(2, False, 0.02)
    ticket.settle(0, True)
    began = time.monotonic()
    assert ticket.result() == [True, False]
    assert time.monotonic() - began < 5.0
    assert ticket.done
    assert ticket.expired
    assert not ticket.settle(1, True)
    assert ticket.result() == [True, False]


def test_result_never_waits_beyond_the_deadline() -> None:
    ticket = Ticket(1, None, -1.0)
    assert ticket.result(60.0) == [None]


def test_cancel_wakes_the_waiter() -> None:
    ticket = Ticket(1, 0, 60.0)
    threading.Timer(0.02, ticket.cancel).start()
    assert ticket.result() == [0]
    assert ticket.cancelled
    assert not ticket.settle(0, 1)


def test_callbacks_come_once_when_all_is_settled() -> None:
    calls: list[str] = []
    ticket = Ticket(2, 0, 60.0)
    ticket.when_over(lambda: calls.append("first"))
    ticket.settle(0, 1)
    assert calls == []
    ticket.fail(1)
    assert calls == ["first"]
    ticket.when_over(lambda: calls.append("second"))
    assert calls == ["first", "second"]


def test_callbacks_of_a_late_ticket_see_what_came_in_time() -> None:
    seen: list[list[int]] = []
    ticket = Ticket(2, 0, 0.05)
    ticket.when_over(lambda: seen.append(ticket.result(0)))
    ticket.settle(0, 1)
    ticket.result()
    assert seen == []
    assert not ticket.settle(1, 1)
    assert seen == [[1, 0]]
    assert ticket.expired


def test_many_threads_settle() -> None:
    ticket = Ticket(400, -1, 30.0)
    threads = [
        threading.Thread(target=lambda k=k: [ticket.settle(i, i) for i in range(k, 400, 8)])
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    assert ticket.result() == list(range(400))
    for thread in threads:
        thread.join()
