/* The replication of one partition, as Penstock does it: three replicas, one metadata leader, and all that may go wrong
   between them. `docs/explanation/model.md` says what is modelled, what is not, and which function each action stands
   for; `check.py` runs it.

   Rules:
   - An action below is one function of the code, or a few that happen in one step there. It is atomic, as a step is.
   - What is compared in the code is compared here: epochs, versions, runs, ends. Time is not: whatever waits for a
     time-out there may happen here at any moment, or never.
   - After every action all invariants are looked at (`check`).

   Theory: replicas are 0, 1, 2; a set of them is a byte, one bit each. A message is a number that no other message has,
   a batch holds one message, and its entry in a log is the epoch that wrote it beside that number. Offsets count from 0
   and ends are exclusive. A number that may be missing is kept plus one, so that 0 says that it is.

   What each replica knows of the cluster is an image that was true once (`seen`). Images that nobody has before him any
   more are forgotten, and versions are counted from the oldest that is known: so what differs only in its past is one
   state. What is not used is 0, for the same reason. */

/* ---- Scope: check.py sets these ---- */

#ifndef LOG_MAX
#define LOG_MAX 2           /* messages that a log has room for */
#endif
#ifndef MESSAGES_MAX
#define MESSAGES_MAX 2      /* messages that are ever written */
#endif
#ifndef EPOCHS_MAX
#define EPOCHS_MAX 3        /* leaderships */
#endif
#ifndef MIN_ISR
#define MIN_ISR 2
#endif
#ifndef FENCES_MAX
#define FENCES_MAX 1        /* ends of sessions; the broker may be dead, or live and cut off */
#endif
#ifndef KILLS_MAX
#define KILLS_MAX 0         /* ends of processes; what they wrote stays */
#endif
#ifndef POWER_LOSSES_MAX
#define POWER_LOSSES_MAX 0  /* ends of machines; what was not synced may go */
#endif
#ifndef STOPS_MAX
#define STOPS_MAX 0         /* clean stops */
#endif
#ifndef MOVES_MAX
#define MOVES_MAX 0         /* leaders that get a successor though they are live */
#endif
#ifndef CHANGES_MAX
#define CHANGES_MAX 255     /* changes of the ISR that are asked for; 255: any number */
#endif
/* FSYNC: durability is `fsync`; else `auto`.
   DISK_AT_ONCE: what is written is on the disk, which makes no difference while no power is lost.
   ANSWERS_IN_FLIGHT: an answer to a fetch may be late, and stale; else it arrives at once. What a follower does not
   know yet it does not tell either, so that makes no difference to anybody else, but for answers that are stale.
   STEP_BY_STEP: a replica may stay at any image; else, when it hears, it hears the newest. */

/* ---- Planted mistakes: each is to be found ----
   TRUNCATE_TO_HW, COMMIT_OVER_SMALLER_ISR, STALE_INCARNATION, COMMIT_BESIDE_RIVALS, EPOCH_NOT_RAISED, OWN_LOG_END,
   UNCLEAN_IS_SURE, LOST_IS_REFUSED, COUNT_DIVERGING */

#define REPLICAS 3
#define NOBODY 3
#define ALL 7

#define BIT(b) (1 << (b))
#define IN(b, set) (((set) >> (b)) & 1)
#define SIZE(set) (((set) & 1) + (((set) >> 1) & 1) + (((set) >> 2) & 1))
#define WITHOUT(set, gone) ((set) & (ALL ^ (gone)))
#define MIN(x, y) ((x) < (y) -> (x) : (y))
#define MAX(x, y) ((x) > (y) -> (x) : (y))

#define ENTRY(epoch, message) (((epoch) << 4) | (message))
#define EPOCH(entry) ((entry) >> 4)
#define MESSAGE(entry) ((entry) & 15)

/* ---- Non-vacuity: with -DREACH=n the model must fail, which shows that it comes to that place ---- */

#ifdef REACH
#define reached(n) assert(n != REACH)
#else
#define reached(n) skip
#endif
#define ALL_COMMITTED 1         /* as many messages as fit are committed */
#define TRUNCATED 2             /* a follower cuts its log by lineage */
#define CUT_BELOW_ANOTHER 3     /* … of which an epoch goes that its leader never had */
#define ELIGIBLE_LEADS 4        /* an eligible replica is elected */
#define RECOVERED 5             /* the longest log of all that were killed leads */
#define LATE_CHANGE_MADE 6      /* a change of the ISR comes to be whose asker has given up its answer */
#define LATE_FETCH_COUNTED 7    /* a fetch counts that arrives when its sender is past it */
#define JOINED 8                /* a replica joins the ISR again */
#define RESUMED 9               /* a leader goes on without its rivals */
#define TWO_LEAD 10             /* a leader commits in an epoch that is over */
#define UNION_COUNTED 11        /* a commit waits for one that the image no longer names */
#define STALE_ANSWER_DROPPED 12 /* an answer of an earlier epoch arrives */
#define STALE_RUN_REFUSED 13    /* a change of the ISR names a run that is over */
#define LED_AGAIN 14            /* the last in sync leads again after it lost its power */
#define LOST_UNSYNCED 15        /* a power loss takes what was written */

/* ---- What the cluster has agreed on (metadata/image.py) ---- */

typedef Image {
    byte leader;
    byte epoch;
    byte isr;
    byte eligible;      /* had all that was acked, and may lead while nothing is committed */
    byte unsure;        /* the same, but may have lost some of it since */
    byte version;
    byte incarnation[REPLICAS]  /* the present run of each broker that is live, 0: it is not */
};

#define IMAGES_MAX 5    /* three replicas stand at three of them at most, and one is the newest; and one comes */
#define NO_IMAGE 7      /* where a broker stands that has no run: it waits to be registered */
Image image[IMAGES_MAX];
byte images;
#define NEWEST (images - 1)
#define now image[images - 1]
#define LIVE(i) ((image[i].incarnation[0] > 0) | ((image[i].incarnation[1] > 0) << 1) | \
    ((image[i].incarnation[2] > 0) << 2))

/* What brokers have told the metadata leader of their logs while nobody leads: last epoch and end, plus one. */
byte told_epoch[REPLICAS];
byte told_end[REPLICAS];

/* ---- One broker: its disk, its process, and what it is to the partition ---- */

#define NEITHER 0
#define LEADS 1
#define FOLLOWS 2

typedef Replica {
    bit up;
    bit whole;              /* nothing that it wrote since its last run was registered can have been lost */
    byte incarnation;               /* the run that it has now, or had last: its incarnation */
    byte seen;              /* which image it has heard of */
    byte role;

    byte log[LOG_MAX];
    byte log_end;
    byte flushed_end;
    byte committed_end;     /* up to where it shows messages to readers */

    byte epoch_start;       /* of a leader, from here on */
    byte proposed;          /* sets that it has proposed as the ISR and that may come to be: bit s for the set s */
    byte in_doubt;          /* of these, those whose answer was lost */
    byte under_way;         /* the set that it waits for an answer about, 0: none */
    bit awaits;             /* an image, which is to have what was accepted */
    byte has[REPLICAS];     /* where the log of each follower ends, plus one; 0: it has not fetched in this epoch */
    byte synced[REPLICAS];  /* what of that is on its disk */
    byte joins_at[REPLICAS] /* what must be there before it joins, plus one; 0: it has not come so far */
};

Replica broker[REPLICAS];
#define view(b) image[broker[b].seen]
#define RIVALS(b) (view(b).eligible | view(b).unsure)

/* ---- What is on its way ---- */

#define NONE 0
#define ASKED 1             /* a request; else an answer: */
#define ACCEPTED 2
#define REFUSED 3

typedef Change {            /* of the ISR (messages/peers.py IsrChange) */
    byte state;
    byte epoch;
    byte version;
    byte isr;
    bit resumes;
    byte incarnation[REPLICAS]      /* in which each member is meant */
};
Change change[REPLICAS];        /* that each broker waits for */
Change late_change[REPLICAS];   /* that it no longer waits for, and that may arrive yet */

#define DIVERGES 1
#define BATCH 2
#define NOTHING 3
typedef Answer {            /* to a fetch (messages/replicas.py ReplicaNews) */
    byte kind;
    byte epoch;
    byte what;              /* the entry of a batch, or the epoch where the logs diverge */
    byte end;               /* where that ends */
    byte committed_end
};
Answer answer[REPLICAS];        /* to each follower */

typedef Fetch {
    byte epoch;             /* 0: there is none */
    byte incarnation;
    byte log_end;
    byte flushed_end;
    byte last_epoch
};
Fetch late_fetch[REPLICAS];     /* of a follower that has gone on since, and that may arrive yet */

/* ---- What happened so far, and what may still happen ---- */

byte committed[LOG_MAX];        /* all that any leader ever committed */
byte committed_in[LOG_MAX];     /* the epoch of the leader that did */
byte messages;
byte fences, kills, power_losses, stops, moves, changes;
bit lost[REPLICAS];             /* a power loss took some of its log, which the metadata has not heard */

/* ---- Scratch: within one action, 0 between two ---- */

byte m_leader, m_epoch, m_isr, m_eligible, m_unsure, may_lead, chosen, led_isr, led_eligible, led_unsure;
byte x, y;
#ifdef BREADTH_FIRST    /* to which spin can hide nothing */
byte i, j, k, e, n, d, o, p, q, s;
#define forget_scratch() i = 0; j = 0; k = 0; e = 0; n = 0; d = 0; o = 0; p = 0; q = 0; s = 0
#else
hidden byte i, j, k, e, n, d, o, p, q, s;
#define forget_scratch() skip
#endif

/* ================================ Invariants ================================ */

/* LogMatching: logs that have the same epoch at the same offset have the same up to there.

   StrongIsr: whoever is in the ISR, or eligible, by what the cluster has agreed on, has all that was ever committed.
   Excepted are a broker that lost some by a power loss and has not been registered since, which nobody can know, and
   one that is `unsure`, of which that is known; with FSYNC there is no such excuse. The union over proposals is covered
   by it: whatever an ISR that was proposed comes to be, its members must have all when it does.

   LeaderCompleteness: whoever leads has all that was committed in the epochs before its own.

   ConsistentRead: what any replica shows to readers at an offset is what was committed there, first and for ever.

   NoCommittedLoss: no follower cuts what was committed, and of each such message some replica that counts, in sync,
   eligible or unsure, has a copy. */

bit LogMatching = 1, StrongIsr = 1, LeaderCompleteness = 1, ConsistentRead = 1, NoCommittedLoss = 1;

inline check_logs() {
    for (i : 0 .. REPLICAS - 2) {
        for (j : i + 1 .. REPLICAS - 1) {
            n = MIN(broker[i].log_end, broker[j].log_end);
            for (o : 1 .. LOG_MAX) {
                if
                :: o <= n && EPOCH(broker[i].log[o - 1]) == EPOCH(broker[j].log[o - 1]) ->
                    for (k : 0 .. o - 1) {
                        if
                        :: broker[i].log[k] != broker[j].log[k] -> LogMatching = 0
                        :: else
                        fi
                    }
                :: else
                fi
            }
        }
    }
}

#ifdef FSYNC
#define MUST_HAVE_ALL (now.isr | now.eligible | now.unsure)
#define EXCUSED(b) false
#else
#define MUST_HAVE_ALL WITHOUT(now.isr | now.eligible, now.unsure)
#define EXCUSED(b) lost[b]
#endif

inline check_members() {
    for (i : 0 .. REPLICAS - 1) {
        for (o : 0 .. LOG_MAX - 1) {
            e = (o < broker[i].log_end -> broker[i].log[o] : 0);
            if
            :: committed[o] && e != committed[o] && IN(i, MUST_HAVE_ALL) && !EXCUSED(i) -> StrongIsr = 0
            :: else
            fi;
            if
            :: broker[i].role == LEADS && committed[o] && committed_in[o] < view(i).epoch && e != committed[o] ->
                LeaderCompleteness = 0
            :: else
            fi;
            if
            :: broker[i].up && o < broker[i].committed_end && (e != committed[o] || !committed[o]) -> ConsistentRead = 0
            :: else
            fi
        }
    }
}

inline check_copies() {
    for (o : 0 .. LOG_MAX - 1) {
        n = !committed[o];
        for (i : 0 .. REPLICAS - 1) {
            if
            :: o < broker[i].log_end && broker[i].log[o] == committed[o] &&
                    IN(i, now.isr | now.eligible | now.unsure) ->
                n = 1
            :: else
            fi
        }
        if
        :: !n -> NoCommittedLoss = 0
        :: else
        fi
    }
}

/* At the end of every action, within it. */
inline check() {
    check_logs(); check_members(); check_copies(); forget_scratch();
    assert(ConsistentRead); assert(NoCommittedLoss); assert(LeaderCompleteness); assert(LogMatching); assert(StrongIsr)
}

/* ================================ Rules (replication/rules.py) ================================ */

/* The largest epoch up to `epoch` that a log has, to `p`, and where it ends, to `q`. */
inline epoch_end(b, up_to) {
    p = 0; q = 0;
    for (k : 0 .. LOG_MAX - 1) {
        if
        :: k < broker[b].log_end && EPOCH(broker[b].log[k]) <= up_to -> p = EPOCH(broker[b].log[k]); q = k + 1
        :: else
        fi
    }
}

#define LAST_EPOCH(b) (broker[b].log_end -> EPOCH(broker[b].log[broker[b].log_end - 1]) : 0)

/* ================================ A leader (replication/leader.py) ================================ */

#ifdef DISK_AT_ONCE
#define SYNC_AT_ONCE(b) broker[b].flushed_end = broker[b].log_end
#else
#define SYNC_AT_ONCE(b) skip
#endif

/* What of its followers and of itself counts, by durability. */
#ifdef FSYNC
#define REACHED(l, f) broker[l].synced[f]
#define WAITS_FOR_OWN_DISK(smallest) true
#else
#define REACHED(l, f) (broker[l].has[f] - 1)
#define WAITS_FOR_OWN_DISK(smallest) ((smallest) == 1)
#endif

/* Move committed_end as far as the rules allow: over what all have who are in the ISR, or may be. */
inline advance(l) {
    x = view(l).isr; n = SIZE(x);
    for (k : 1 .. ALL) {
        if
        :: (broker[l].proposed >> k) & 1 ->
#ifdef COMMIT_OVER_SMALLER_ISR
            x = x & k;
#else
            x = x | k;
#endif
            n = MIN(n, SIZE(k))
        :: else
        fi
    }
#ifdef COMMIT_BESIDE_RIVALS
    if
    :: SIZE(view(l).isr) < MIN_ISR -> x = 0
    :: else
    fi;
#else
    if
    :: RIVALS(l) || SIZE(view(l).isr) < MIN_ISR -> x = 0
    :: else
    fi;
#endif
    e = (WAITS_FOR_OWN_DISK(n) -> broker[l].flushed_end : broker[l].log_end);
    q = e;
    for (k : 0 .. REPLICAS - 1) {
        if
        :: k != l && IN(k, x) && !broker[l].has[k] -> e = 0
        :: k != l && IN(k, x) && broker[l].has[k] -> e = MIN(e, REACHED(l, k))
        :: else
        fi;
        if
        :: k != l && IN(k, view(l).isr) -> q = (broker[l].has[k] -> MIN(q, REACHED(l, k)) : 0)
        :: else
        fi
    }
    if
    :: x && q > e && q > broker[l].committed_end -> reached(UNION_COUNTED)
    :: else
    fi;
    if
    :: x && e > broker[l].committed_end ->
        for (k : 0 .. LOG_MAX - 1) {
            if
            :: k >= broker[l].committed_end && k < e && !committed[k] ->
                committed[k] = broker[l].log[k]; committed_in[k] = view(l).epoch
            :: k >= broker[l].committed_end && k < e && committed[k] && committed[k] != broker[l].log[k] ->
                ConsistentRead = 0
            :: else
            fi
        }
        broker[l].committed_end = e;
        printf("MSG broker %d commits up to %d in epoch %d\n", l + 1, e, view(l).epoch);
        if
        :: e == LOG_MAX -> reached(ALL_COMMITTED)
        :: else
        fi;
        if
        :: view(l).epoch < now.epoch -> reached(TWO_LEAD)
        :: else
        fi
    :: else
    fi;
    x = 0
}

#define HAS_ALL(l, f) (broker[l].has[f] && REACHED(l, f) >= NEEDED(l))
#define NEEDED(l) MAX(broker[l].committed_end, broker[l].epoch_start)
#define MAY_JOIN(l, f) (view(l).incarnation[f] && HAS_ALL(l, f) && broker[l].joins_at[f] && \
    broker[l].synced[f] >= broker[l].joins_at[f] - 1)
#define HAS_SYNCED(l) (broker[l].flushed_end >= MAX(broker[l].committed_end, broker[l].epoch_start))

/* Leadership.fetched: a position that agrees counts. */
inline fetched(l, f, upto, disk_upto) {
    broker[l].has[f] = (upto) + 1;
    broker[l].synced[f] = MIN(disk_upto, upto);
    advance(l);
    if
    :: IN(f, view(l).isr) -> broker[l].joins_at[f] = 0
    :: !IN(f, view(l).isr) && !broker[l].joins_at[f] && HAS_ALL(l, f) ->
        broker[l].joins_at[f] = broker[l].flushed_end + 1
    :: else
    fi
}

inline forget_follower(l, f) {
    broker[l].has[f] = 0; broker[l].synced[f] = 0; broker[l].joins_at[f] = 0
}

inline forget_change(c) {
    c.state = NONE; c.epoch = 0; c.version = 0; c.isr = 0; c.resumes = 0;
    c.incarnation[0] = 0; c.incarnation[1] = 0; c.incarnation[2] = 0
}

/* What was asked for is on its way yet, and nobody waits for it. One such change of each broker is kept: of more, the
   earlier ones never arrive. */
inline give_up_change(l) {
    if
    :: change[l].state == ASKED && change[l].epoch == now.epoch && change[l].version == now.version ->
        late_change[l].state = ASKED;
        late_change[l].epoch = change[l].epoch; late_change[l].version = change[l].version;
        late_change[l].isr = change[l].isr; late_change[l].resumes = change[l].resumes;
        late_change[l].incarnation[0] = change[l].incarnation[0];
        late_change[l].incarnation[1] = change[l].incarnation[1];
        late_change[l].incarnation[2] = change[l].incarnation[2]
    :: else     /* by its version it can only be refused */
    fi;
    forget_change(change[l])
}

/* Whatever it was, it is that no more (Roles._resign, _unfollow, or its process has ended). */
inline be_neither(b) {
    if
    :: broker[b].role == LEADS ->
        give_up_change(b);
        broker[b].epoch_start = 0; broker[b].proposed = 0; broker[b].in_doubt = 0; broker[b].under_way = 0;
        broker[b].awaits = 0;
        for (k : 0 .. REPLICAS - 1) { forget_follower(b, k) }
    :: broker[b].role == FOLLOWS ->     /* it may have asked just before */
        late_fetch[b].epoch = view(b).epoch; late_fetch[b].incarnation = broker[b].incarnation;
        late_fetch[b].log_end = broker[b].log_end; late_fetch[b].flushed_end = broker[b].flushed_end;
        late_fetch[b].last_epoch = LAST_EPOCH(b)
    :: else
    fi;
    broker[b].role = NEITHER
}

/* ================================ What an image makes of a broker (node/replicas/roles.py) ================================ */

/* Cut the log of `b` to `until`; all that is left is on its disk then (commitlog/truncation.py). */
inline truncate(b, until) {
    for (k : 0 .. LOG_MAX - 1) {
        if
        :: k >= until && k < broker[b].log_end ->
            if
            :: committed[k] && committed[k] == broker[b].log[k] -> NoCommittedLoss = 0
            :: else
            fi;
            broker[b].log[k] = 0
        :: else
        fi
    }
    broker[b].log_end = until;
    broker[b].flushed_end = until;
    broker[b].committed_end = MIN(broker[b].committed_end, until)
}

inline forget_answer(b) {
    answer[b].kind = NONE; answer[b].epoch = 0; answer[b].what = 0; answer[b].end = 0; answer[b].committed_end = 0
}

/* The image that broker `b` has heard of names a leader, and it was neither that nor a follower before. */
inline take_role(b) {
    if
    :: view(b).leader == b ->
        broker[b].role = LEADS;     /* Leading.begin */
        broker[b].epoch_start = broker[b].log_end;
        printf("MSG broker %d begins to lead in epoch %d; its log ends at %d\n", b + 1, view(b).epoch,
            broker[b].log_end);
        advance(b)
    :: view(b).leader != b && view(b).leader != NOBODY ->
        broker[b].role = FOLLOWS;   /* Follows.follow: it reconciles before anything else */
        printf("MSG broker %d follows broker %d in epoch %d\n", b + 1, view(b).leader + 1, view(b).epoch);
#ifdef TRUNCATE_TO_HW
        if
        :: broker[b].log_end > broker[b].committed_end ->
            printf("MSG broker %d cuts its log from %d to its own committed end, %d\n", b + 1, broker[b].log_end,
                broker[b].committed_end);
            truncate(b, broker[b].committed_end)
        :: else
        fi
#endif
    :: else
    fi
}

/* The next image becomes known here (Roles.update). */
inline hear_image(b) {
    s = broker[b].seen + 1;
    if
    :: broker[b].role == NEITHER || image[s].incarnation[b] != broker[b].incarnation || image[s].leader == NOBODY ||
            image[s].epoch != view(b).epoch ->
        be_neither(b);
        broker[b].seen = s;
        printf("MSG broker %d hears: leader %d, epoch %d, isr %d, eligible %d, unsure %d\n", b + 1,
            (view(b).leader + 1) % 4, view(b).epoch, view(b).isr, view(b).eligible, view(b).unsure);
        if
        :: view(b).incarnation[b] != broker[b].incarnation -> broker[b].seen = NO_IMAGE     /* it was fenced */
        :: else -> take_role(b)
        fi
    :: else ->
        if
        :: broker[b].role == LEADS ->       /* Leadership.image */
            for (k : 0 .. REPLICAS - 1) {
                if
                :: k != b && image[s].incarnation[k] != view(b).incarnation[k] -> forget_follower(b, k)
                :: else
                fi
            }
            if
            :: image[s].version > view(b).version ->    /* what was proposed is this now, or can no longer come to be */
                give_up_change(b);
                broker[b].proposed = 0; broker[b].in_doubt = 0; broker[b].under_way = 0; broker[b].awaits = 0
            :: else
            fi
        :: else
        fi;
        broker[b].seen = s;
        printf("MSG broker %d hears: leader %d, epoch %d, isr %d, eligible %d, unsure %d\n", b + 1,
            (view(b).leader + 1) % 4, view(b).epoch, view(b).isr, view(b).eligible, view(b).unsure);
        if
        :: broker[b].role == LEADS -> advance(b)
        :: else
        fi
    fi
}

/* ================================ The metadata leader (metadata/) ================================ */

/* What the cluster has agreed on, to be changed: m_*. */
inline begin_command() {
    m_leader = now.leader; m_epoch = now.epoch; m_isr = now.isr; m_eligible = now.eligible; m_unsure = now.unsure;
    chosen = NOBODY
}

/* elections._left: without a leader, if it was `b`, and with it in the ISR only if it is the last there. */
inline left(b) {
    if
    :: m_leader == b -> m_leader = NOBODY
    :: else
    fi;
    if
    :: IN(b, m_isr) && m_isr != BIT(b) ->
        m_isr = WITHOUT(m_isr, BIT(b)); m_eligible = WITHOUT(m_eligible | BIT(b), m_isr)
    :: else
    fi
}

/* elections._elected: who may lead, if nobody does, and beside whom; the order of preference among them is left open.
   `alive`: who is live. */
inline candidates(alive) {
    may_lead = 0;
    if
    :: m_leader != NOBODY
    :: m_leader == NOBODY && (WITHOUT(m_isr, m_unsure) & alive) ->
        may_lead = WITHOUT(m_isr, m_unsure) & alive; led_isr = m_isr; led_eligible = m_eligible; led_unsure = m_unsure
    :: m_leader == NOBODY && !(WITHOUT(m_isr, m_unsure) & alive) && (m_eligible & alive) ->
        may_lead = m_eligible & alive; led_isr = 0; led_eligible = m_eligible | WITHOUT(m_isr, m_unsure);
        led_unsure = m_unsure; reached(ELIGIBLE_LEADS)
    :: else ->      /* recovers: only one that is alone leads at once */
        if
        :: m_unsure && !WITHOUT(m_isr | m_eligible | m_unsure, alive) && SIZE(alive) == 1 ->
            may_lead = alive; led_isr = 0; led_eligible = m_eligible; led_unsure = m_unsure; reached(LED_AGAIN)
        :: else
        fi
    fi
}

/* elections._first, whatever the order. */
inline choose() {
    if
    :: IN(0, may_lead) -> chosen = 0
    :: IN(1, may_lead) -> chosen = 1
    :: IN(2, may_lead) -> chosen = 2
    :: !may_lead -> chosen = NOBODY
    fi
}

/* elections._led_by */
inline led_by_chosen() {
    if
    :: chosen != NOBODY ->
        m_leader = chosen;
#ifdef EPOCH_NOT_RAISED
        m_epoch = (last_led == chosen -> m_epoch : m_epoch + 1); last_led = chosen;
#else
        m_epoch = m_epoch + 1;
#endif
        m_isr = led_isr | BIT(chosen);
        m_unsure = WITHOUT(led_unsure, m_isr);
        m_eligible = WITHOUT(led_eligible, m_isr | m_unsure)
    :: else
    fi
}
#ifdef EPOCH_NOT_RAISED
byte last_led;
#endif

/* A late change can come to be only while its version is the partition's. */
inline forget_dead_changes() {
    for (k : 0 .. REPLICAS - 1) {
        if
        :: late_change[k].state && (late_change[k].version != now.version || late_change[k].epoch != now.epoch) ->
            forget_change(late_change[k])
        :: else
        fi
    }
}

inline copy_image(to, from) {
    image[to].leader = image[from].leader; image[to].epoch = image[from].epoch; image[to].isr = image[from].isr;
    image[to].eligible = image[from].eligible; image[to].unsure = image[from].unsure;
    image[to].version = image[from].version;
    image[to].incarnation[0] = image[from].incarnation[0];
    image[to].incarnation[1] = image[from].incarnation[1];
    image[to].incarnation[2] = image[from].incarnation[2]
}

/* Whether a process stands at image `at`. */
#define STANDS(b, at) (broker[b].up && broker[b].seen == (at))
#define SOMEBODY_AT(at) (STANDS(0, at) || STANDS(1, at) || STANDS(2, at))

/* Forget the image `at`: nobody stands there. */
inline drop_image(at) {
    for (k : at .. IMAGES_MAX - 2) {
        if
        :: k + 1 < images -> copy_image(k, k + 1)
        :: else
        fi
    }
    images--;
    image[images].leader = 0; image[images].epoch = 0; image[images].isr = 0; image[images].eligible = 0;
    image[images].unsure = 0; image[images].version = 0;
    image[images].incarnation[0] = 0; image[images].incarnation[1] = 0; image[images].incarnation[2] = 0;
    for (k : 0 .. REPLICAS - 1) {
        if
        :: broker[k].up && broker[k].seen != NO_IMAGE && broker[k].seen > at -> broker[k].seen--
        :: else
        fi
    }
}

/* Forget what nobody can hear of any more, and count versions from the oldest image that is left. */
inline tidy() {
    for (i : 0 .. IMAGES_MAX - 1) {
        for (j : 0 .. IMAGES_MAX - 1) {
            if
#ifdef STEP_BY_STEP
            :: j == 0 && images > 1 && !SOMEBODY_AT(0) -> drop_image(0)
            :: j > 0 && images == IMAGES_MAX && j < images - 1 && !SOMEBODY_AT(j) -> drop_image(j)
#else
            :: j < images - 1 && !SOMEBODY_AT(j) -> drop_image(j)
#endif
            :: else
            fi
        }
    }
    d = image[0].version - 1;
    if
    :: d > 0 ->
        for (k : 0 .. IMAGES_MAX - 1) {
            if
            :: k < images -> image[k].version = image[k].version - d
            :: else
            fi
        }
        for (k : 0 .. REPLICAS - 1) {
            if
            :: change[k].state == ASKED -> change[k].version = (change[k].version > d -> change[k].version - d : 0)
            :: else
            fi;
            if
            :: late_change[k].state -> late_change[k].version = late_change[k].version - d
            :: else
            fi
        }
    :: else
    fi
}

/* The partition is as m_* say now, with a version of its own if that is news (elections.after), or if it `must`. Of
   broker `b`, if that is one, the run is `its_run` now. */
inline end_command(b, its_run, must) {
    copy_image(images, images - 1);
    images++;
    if
    :: must || now.leader != m_leader || now.epoch != m_epoch || now.isr != m_isr || now.eligible != m_eligible ||
            now.unsure != m_unsure ->
        now.version = now.version + 1
    :: else
    fi;
    now.leader = m_leader; now.epoch = m_epoch; now.isr = m_isr; now.eligible = m_eligible; now.unsure = m_unsure;
    if
    :: b != NOBODY -> now.incarnation[b] = its_run; told_epoch[b] = 0; told_end[b] = 0
    :: else
    fi;
    if
    :: now.leader != NOBODY ->
        for (k : 0 .. REPLICAS - 1) { told_epoch[k] = 0; told_end[k] = 0 }
    :: else
    fi;
    printf("MSG   now: leader %d, epoch %d, isr %d, eligible %d, unsure %d\n", (now.leader + 1) % 4, now.epoch, now.isr,
        now.eligible, now.unsure);
    m_leader = 0; m_epoch = 0; m_isr = 0; m_eligible = 0; m_unsure = 0;
    may_lead = 0; chosen = 0; led_isr = 0; led_eligible = 0; led_unsure = 0;
    forget_dead_changes()
}

#define MAY_ELECT (now.epoch < EPOCHS_MAX)

/* brokers.fence_broker, and stop_broker: the run of `b` is over, as far as the cluster is concerned. */
inline fence_broker(b) {
    d_step {
        fences++;
        printf("MSG broker %d is fenced\n", b + 1);
        begin_command(); left(b); candidates(WITHOUT(LIVE(NEWEST), BIT(b)))
    }
    choose();
    d_step { led_by_chosen(); end_command(b, 0, false); tidy(); check() }
}

/* brokers.register_broker: a run of `b` begins, after a start, or because it was fenced and lives. Until it hears that,
   a broker is neither leader nor follower, so it is as if it heard it at once. */
inline register_broker(b) {
    d_step {
        printf("MSG broker %d registers as run %d, after a clean stop: %d\n", b + 1, broker[b].incarnation + 1,
            broker[b].whole);
        begin_command(); left(b);
        if
        :: !(broker[b].whole) ->
            y = m_isr == BIT(b) || IN(b, m_eligible | m_unsure);    /* it had all that was acked */
#ifdef UNCLEAN_IS_SURE
            y = 0;
#else
            m_eligible = WITHOUT(m_eligible, BIT(b));
#endif
            m_unsure = (y -> m_unsure | BIT(b) : m_unsure);
            y = 0
        :: else
        fi;
        candidates((LIVE(NEWEST) | BIT(b)))
    }
    choose();
    d_step {
        led_by_chosen();
        if
        :: broker[b].up -> be_neither(b); forget_answer(b)
        :: else
        fi;
        broker[b].up = 1; broker[b].whole = 1; lost[b] = 0;
        broker[b].incarnation++;
        end_command(b, broker[b].incarnation, false);
        broker[b].seen = images - 1;
        tidy();
        take_role(b);
        check()
    }
}

/* leaderships.elect_leaders with elections.leader_changed: most of the others cannot fetch from the leader. */
inline elect_another(b) {
    d_step {
        moves++;
        printf("MSG another is to lead than broker %d\n", b + 1);
        begin_command();
        led_isr = WITHOUT(m_isr, BIT(m_leader)); led_eligible = m_eligible | BIT(m_leader); led_unsure = m_unsure;
        may_lead = led_isr & LIVE(NEWEST)
    }
    choose();
    d_step { led_by_chosen(); end_command(NOBODY, 0, false); tidy(); check() }
}

/* elections.preferred: the first replica leads again. */
inline elect_preferred() {
    d_step {
        moves++;
        printf("MSG the preferred leader is to lead\n");
        begin_command();
        led_isr = m_isr; led_eligible = m_eligible; led_unsure = m_unsure; chosen = 0;
        led_by_chosen(); end_command(NOBODY, 0, false); tidy(); check()
    }
}

/* leaderships.change_isr: a compare-and-set of epoch, leader and version; and every member in the run that is meant. */
inline change_isr(l, asked) {
    x = asked.epoch == now.epoch && now.leader == l && asked.version == now.version &&
        asked.incarnation[l] == now.incarnation[l];
    for (k : 0 .. REPLICAS - 1) {
        if
        :: IN(k, asked.isr) && asked.incarnation[k] != now.incarnation[k] ->
            if
            :: x -> reached(STALE_RUN_REFUSED)
            :: else
            fi;
#ifndef STALE_INCARNATION
            x = 0
#endif
        :: else
        fi
    }
    if
    :: x ->
        printf("MSG the change of the ISR to %d is made\n", asked.isr);
        if
        :: WITHOUT(asked.isr, now.isr) -> reached(JOINED)
        :: else
        fi;
        begin_command();
        if
        :: asked.resumes -> m_eligible = 0; m_unsure = 0
        :: else ->      /* elections.beside_wanted */
            y = (SIZE(asked.isr) < MIN_ISR || m_eligible || m_unsure -> m_isr : 0);
            m_unsure = WITHOUT(m_unsure, asked.isr);
            m_eligible = WITHOUT(m_eligible | y, asked.isr | m_unsure);
            y = 0
        fi;
        m_isr = asked.isr;
        end_command(NOBODY, 0, true)
    :: else -> printf("MSG the change of the ISR to %d is refused\n", asked.isr)
    fi
}

/* leaderships.recover_partitions with elections.recovered: the longest log of those who had all that was acked leads,
   or one that goes on where that ends. */
#define HOLDERS (now.isr | now.eligible | now.unsure)
#define RECOVERS(i) (image[i].leader == NOBODY && image[i].unsure && \
    !WITHOUT(image[i].isr | image[i].eligible | image[i].unsure, LIVE(i)))
#define TOLD ((told_epoch[0] > 0) | ((told_epoch[1] > 0) << 1) | ((told_epoch[2] > 0) << 2))
#define LENGTH(b) (told_epoch[b] * 16 + told_end[b])
inline recover() {
    d_step {
        begin_command();
        n = 0; p = 0;
        o = (IN(0, HOLDERS) -> 0 : (IN(1, HOLDERS) -> 1 : 2));
        for (k : 0 .. REPLICAS - 1) {   /* the longest of those who count */
            if
            :: IN(k, HOLDERS) && LENGTH(k) > LENGTH(o) -> o = k
            :: else
            fi
        }
        d = told_epoch[o]; e = told_end[o];
        for (k : 0 .. REPLICAS - 1) {   /* of those that go on with it, */
            if
            :: IN(k, TOLD) && (LENGTH(o) == 17 || (told_epoch[k] == d && told_end[k] >= e)) && LENGTH(k) > n ->
                n = LENGTH(k)
            :: else
            fi
        }
        for (k : 0 .. REPLICAS - 1) {   /* the longest */
            if
            :: IN(k, TOLD) && LENGTH(k) == n -> p = p | BIT(k)
            :: else
            fi
        }
        may_lead = (p & HOLDERS -> p & HOLDERS : p);
        led_isr = 0; led_eligible = p; led_unsure = WITHOUT(HOLDERS, p);
        printf("MSG the longest of the logs of all that are back is to lead\n");
        reached(RECOVERED)
    }
    choose();
    d_step { led_by_chosen(); end_command(NOBODY, 0, false); tidy(); check() }
}

inline answer_change(l) {
    change_isr(l, change[l]);
    forget_change(change[l]);
    change[l].state = (x -> ACCEPTED : REFUSED);
    x = 0
}
inline make_late_change(l) {
    change_isr(l, late_change[l]);
    if
    :: x -> reached(LATE_CHANGE_MADE)
    :: else
    fi;
    forget_change(late_change[l]);
    x = 0
}

/* LogEnds.take, Recoveries.heard: a run that goes on tells of a log that nobody leads. */
#define TELLS(b) (broker[b].up && broker[b].seen != NO_IMAGE && now.incarnation[b] == broker[b].incarnation && \
    RECOVERS(NEWEST) && RECOVERS(broker[b].seen) && \
    view(b).epoch == now.epoch && broker[b].role == NEITHER && !told_epoch[b])
inline tell_log_end(b) {
    told_epoch[b] = LAST_EPOCH(b) + 1; told_end[b] = broker[b].log_end + 1;
    printf("MSG broker %d tells that its log ends at %d, last epoch %d\n", b + 1, broker[b].log_end, told_epoch[b] - 1)
}

/* ================================ Fetching ================================ */

/* Sessions._named and _fill: the leader takes in a position, and answers at once; `to` is whom, NOBODY if nobody waits.
   Between two steps of a leader nothing else comes of a position than what comes of naming it again. */
inline serve_fetch(l, f, upto, disk_upto, last, to) {
    epoch_end(l, last);
    if
    :: (last == 0 && upto <= broker[l].log_end) || (last && p == last && q >= upto) ->
        fetched(l, f, upto, disk_upto);
        if
        :: to != NOBODY ->
            answer[f].kind = (upto < broker[l].log_end -> BATCH : NOTHING);
            answer[f].epoch = view(l).epoch;
            answer[f].what = (upto < broker[l].log_end -> broker[l].log[upto] : 0);
            answer[f].end = 0;
            answer[f].committed_end = broker[l].committed_end
        :: else
        fi
    :: else ->      /* rules.divergence */
#ifdef COUNT_DIVERGING
        fetched(l, f, upto, disk_upto);
#endif
        if
        :: to != NOBODY ->
            answer[f].kind = DIVERGES; answer[f].epoch = view(l).epoch; answer[f].what = p; answer[f].end = q;
            answer[f].committed_end = 0
        :: else
        fi
    fi
}

/* Following.position → Sessions.fetch. What was asked before, and not answered yet, is forgotten with that. */
#define CAN_FETCH(f, l) (broker[f].role == FOLLOWS && view(f).leader == l && broker[l].role == LEADS && \
    view(l).epoch == view(f).epoch && view(l).incarnation[f] == broker[f].incarnation)
inline fetch(f, l) {
    printf("MSG broker %d fetches from %d on, last epoch %d, from broker %d in epoch %d\n", f + 1, broker[f].log_end,
        LAST_EPOCH(f), l + 1, view(l).epoch);
    e = LAST_EPOCH(f);
    s = e;
    serve_fetch(l, f, broker[f].log_end, broker[f].flushed_end, s, f);
    if
    :: late_fetch[f].epoch == view(l).epoch && late_fetch[f].incarnation == broker[f].incarnation ->
        forget_late_fetch(f)
    :: else
    fi
}

inline forget_late_fetch(f) {
    late_fetch[f].epoch = 0; late_fetch[f].incarnation = 0; late_fetch[f].log_end = 0; late_fetch[f].flushed_end = 0;
    late_fetch[f].last_epoch = 0
}

/* A fetch arrives whose sender follows somebody else by now, or runs no more. */
#define CAN_ARRIVE(f, l) (late_fetch[f].epoch && broker[l].role == LEADS && view(l).epoch == late_fetch[f].epoch && \
    view(l).incarnation[f] == late_fetch[f].incarnation)
inline fetch_arrives_late(f, l) {
    printf("MSG a late fetch of broker %d from %d on reaches broker %d\n", f + 1, late_fetch[f].log_end, l + 1);
    reached(LATE_FETCH_COUNTED);
    s = late_fetch[f].last_epoch;
    serve_fetch(l, f, late_fetch[f].log_end, late_fetch[f].flushed_end, s, NOBODY);
    forget_late_fetch(f)
}

/* Following.news, Following.ends. */
inline take_answer(f) {
    if
    :: broker[f].role != FOLLOWS || answer[f].epoch != view(f).epoch ->
        printf("MSG broker %d drops a stale answer\n", f + 1);
        reached(STALE_ANSWER_DROPPED)
    :: else ->
        if
        :: answer[f].kind == DIVERGES ->
            epoch_end(f, answer[f].what);       /* rules.truncation_end */
            q = MIN(q, answer[f].end);
            assert(q < broker[f].log_end);      /* else the leader contradicts itself */
            if
            :: EPOCH(broker[f].log[q]) > answer[f].what -> reached(CUT_BELOW_ANOTHER)
            :: else
            fi;
            s = q;
            printf("MSG broker %d cuts its log from %d to %d\n", f + 1, broker[f].log_end, s);
            reached(TRUNCATED);
            truncate(f, s)
        :: answer[f].kind == BATCH && broker[f].log_end < LOG_MAX ->
            broker[f].log[broker[f].log_end] = answer[f].what;
            broker[f].log_end++;
            SYNC_AT_ONCE(f);
            printf("MSG broker %d takes message %d of epoch %d; its log ends at %d\n", f + 1, MESSAGE(answer[f].what),
                EPOCH(answer[f].what), broker[f].log_end)
        :: else
        fi;
        if
        :: answer[f].kind != DIVERGES ->
#ifdef OWN_LOG_END
            broker[f].committed_end = broker[f].log_end
#else
            broker[f].committed_end = MAX(broker[f].committed_end, MIN(answer[f].committed_end, broker[f].log_end))
#endif
        :: else
        fi
    fi;
    forget_answer(f)
}

#ifdef ANSWERS_IN_FLIGHT
#define ARRIVE_AT_ONCE(f) skip
#else
#define ARRIVE_AT_ONCE(f) take_answer(f)
#endif

/* ================================ Actions ================================ */

#define MAY_APPEND(l) (broker[l].role == LEADS && SIZE(view(l).isr) >= MIN_ISR && broker[l].log_end < LOG_MAX && \
    messages < MESSAGES_MAX)

/* Leadership.proposal: whoever is late may go, whoever may join may be taken in. */
#define MAY_PROPOSE(l) (broker[l].role == LEADS && !broker[l].under_way && !broker[l].awaits && changes < CHANGES_MAX)
#define IS_NEW(l) (x != view(l).isr || broker[l].proposed || \
    (RIVALS(l) && SIZE(view(l).isr) >= MIN_ISR && HAS_SYNCED(l)))
inline may_be_wanted(l, f) {
    if
    :: f != l && view(l).incarnation[f] && (IN(f, view(l).isr) || MAY_JOIN(l, f)) -> x = x | BIT(f)
    :: f != l && !(IN(f, view(l).isr) && view(l).incarnation[f] && broker[l].has[f] &&
            REACHED(l, f) >= broker[l].log_end) -> skip      /* who has all is not late */
    :: f == l -> x = x | BIT(f)
    fi
}
inline propose(l) {
    broker[l].under_way = x;
    broker[l].proposed = broker[l].proposed | BIT(x);
    change[l].state = ASKED; change[l].epoch = view(l).epoch; change[l].version = view(l).version; change[l].isr = x;
    change[l].resumes = (!RIVALS(l) || HAS_SYNCED(l)) && SIZE(x) >= MIN_ISR;
    for (k : 0 .. REPLICAS - 1) { change[l].incarnation[k] = (IN(k, x) -> view(l).incarnation[k] : 0) }
    if
    :: RIVALS(l) && change[l].resumes -> reached(RESUMED)
    :: else
    fi;
    changes = (CHANGES_MAX == 255 -> 0 : changes + 1);
    printf("MSG broker %d asks for the ISR %d\n", l + 1, x);
    x = 0
}

/* Leadership.accepted, refused; lost. */
inline change_answered(l) {
    if
    :: change[l].state == ACCEPTED -> broker[l].under_way = 0; broker[l].awaits = 1
    :: else ->
        broker[l].proposed = (broker[l].in_doubt & BIT(broker[l].under_way) -> broker[l].proposed :
            broker[l].proposed & (255 - BIT(broker[l].under_way)));
        broker[l].under_way = 0
    fi;
    forget_change(change[l]);
    advance(l)
}
inline change_lost(l) {
    printf("MSG broker %d gives up the answer about the ISR %d\n", l + 1, broker[l].under_way);
#ifdef LOST_IS_REFUSED
    broker[l].proposed = broker[l].proposed & (255 - BIT(broker[l].under_way));
#else
    broker[l].in_doubt = broker[l].in_doubt | BIT(broker[l].under_way);
#endif
    broker[l].under_way = 0;
    give_up_change(l)
}

inline end_process(b, upto, is_clean) {
    be_neither(b);
    forget_answer(b);
    lost[b] = lost[b] || upto < broker[b].log_end;
    for (k : 0 .. LOG_MAX - 1) {
        if
        :: k >= upto -> broker[b].log[k] = 0
        :: else
        fi
    }
    broker[b].log_end = upto;
    broker[b].flushed_end = (is_clean -> upto : MIN(broker[b].flushed_end, upto));
    broker[b].up = 0; broker[b].whole = is_clean; broker[b].seen = 0
}

/* Partition._append_messages, Leadership.appended. */
inline append(l) {
    messages++;
    broker[l].log[broker[l].log_end] = ENTRY(view(l).epoch, messages);
    broker[l].log_end++;
    SYNC_AT_ONCE(l);
    printf("MSG broker %d writes message %d at offset %d in epoch %d\n", l + 1, messages, broker[l].log_end - 1,
        view(l).epoch);
    advance(l)
}

/* Upkeep.flush, Leadership.flushed; a follower says so when it fetches next. */
inline flush(b) {
    broker[b].flushed_end = broker[b].log_end;
    printf("MSG broker %d syncs up to %d\n", b + 1, broker[b].log_end);
    if
    :: broker[b].role == LEADS -> advance(b)
    :: else
    fi
}

inline kill(b) {
    kills++;
    printf("MSG broker %d is killed\n", b + 1);
    s = broker[b].log_end;
    end_process(b, s, false)
}

/* Its log is there up to `y`. Of its committed end the disk may know less than it had shown: nothing, here. */
inline lose_power(b) {
    power_losses++;
    printf("MSG broker %d loses its power, and has its log up to %d\n", b + 1, y);
    if
    :: y < broker[b].log_end -> reached(LOST_UNSYNCED)
    :: else
    fi;
    end_process(b, y, false);
    broker[b].committed_end = 0; y = 0
}

/* clean_stop.mark_if_whole: all is on the disk first. */
inline stop(b) {
    stops++;
    printf("MSG broker %d stops, with all on its disk\n", b + 1);
    s = broker[b].log_end;
    end_process(b, s, true)
}

proctype Broker(byte b) {
end:                            /* the bounds may leave nothing to be done */
    do
    :: atomic { MAY_APPEND(b) -> d_step { append(b); check() } }
    :: atomic { broker[b].up && broker[b].flushed_end < broker[b].log_end -> d_step { flush(b); check() } }

    :: atomic { broker[b].up && broker[b].seen < NEWEST -> d_step { hear_image(b); tidy(); check() } }

    :: atomic { CAN_FETCH(b, 0) -> d_step { fetch(b, 0); ARRIVE_AT_ONCE(b); check() } }
    :: atomic { CAN_FETCH(b, 1) -> d_step { fetch(b, 1); ARRIVE_AT_ONCE(b); check() } }
    :: atomic { CAN_FETCH(b, 2) -> d_step { fetch(b, 2); ARRIVE_AT_ONCE(b); check() } }
    :: atomic { CAN_ARRIVE(b, 0) -> d_step { fetch_arrives_late(b, 0); check() } }
    :: atomic { CAN_ARRIVE(b, 1) -> d_step { fetch_arrives_late(b, 1); check() } }
    :: atomic { CAN_ARRIVE(b, 2) -> d_step { fetch_arrives_late(b, 2); check() } }
    :: atomic { answer[b].kind -> d_step { take_answer(b); check() } }

    :: atomic { MAY_PROPOSE(b) ->
        may_be_wanted(b, 0); may_be_wanted(b, 1); may_be_wanted(b, 2);
        if
        :: IS_NEW(b) -> d_step { propose(b); check() }
        :: else -> x = 0
        fi }
    :: atomic { change[b].state > ASKED -> d_step { change_answered(b); check() } }
    :: atomic { change[b].state -> d_step { change_lost(b); check() } }

    :: atomic { broker[b].up && kills < KILLS_MAX -> d_step { kill(b); tidy(); check() } }
    :: atomic { broker[b].up && power_losses < POWER_LOSSES_MAX ->
        y = broker[b].flushed_end;
        do
        :: y < broker[b].log_end -> y++
        :: break
        od;
        d_step { lose_power(b); tidy(); check() } }
    :: atomic { broker[b].up && stops < STOPS_MAX -> d_step { stop(b); tidy(); check() } }
    :: atomic { (!broker[b].up || !now.incarnation[b]) && MAY_ELECT -> register_broker(b) }
    od
}

proctype MetadataLeader() {
end:
    do
    :: atomic { now.incarnation[0] && fences < FENCES_MAX && MAY_ELECT -> fence_broker(0) }
    :: atomic { now.incarnation[1] && fences < FENCES_MAX && MAY_ELECT -> fence_broker(1) }
    :: atomic { now.incarnation[2] && fences < FENCES_MAX && MAY_ELECT -> fence_broker(2) }

    :: atomic { now.leader != NOBODY && moves < MOVES_MAX && MAY_ELECT &&
            (WITHOUT(now.isr, BIT(now.leader)) & LIVE(NEWEST)) -> elect_another(now.leader) }
    :: atomic { now.leader != NOBODY && now.leader != 0 && IN(0, now.isr & LIVE(NEWEST)) && moves < MOVES_MAX &&
            MAY_ELECT -> elect_preferred() }

    :: atomic { change[0].state == ASKED -> d_step { answer_change(0); tidy(); check() } }
    :: atomic { change[1].state == ASKED -> d_step { answer_change(1); tidy(); check() } }
    :: atomic { change[2].state == ASKED -> d_step { answer_change(2); tidy(); check() } }
    :: atomic { late_change[0].state -> d_step { make_late_change(0); tidy(); check() } }
    :: atomic { late_change[1].state -> d_step { make_late_change(1); tidy(); check() } }
    :: atomic { late_change[2].state -> d_step { make_late_change(2); tidy(); check() } }

    :: atomic { TELLS(0) -> d_step { tell_log_end(0); check() } }
    :: atomic { TELLS(1) -> d_step { tell_log_end(1); check() } }
    :: atomic { TELLS(2) -> d_step { tell_log_end(2); check() } }
    :: atomic { RECOVERS(NEWEST) && !WITHOUT(HOLDERS, TOLD) && SIZE(LIVE(NEWEST)) > 1 && MAY_ELECT -> recover() }
    od
}

init {
    atomic { d_step {
        /* All are there and in sync, and the first one leads. */
        images = 1;
        now.leader = 0; now.epoch = 1; now.isr = ALL; now.version = 1;
        for (i : 0 .. REPLICAS - 1) {
            broker[i].up = 1; broker[i].whole = 1; broker[i].incarnation = 1; now.incarnation[i] = 1;
            broker[i].role = (i == 0 -> LEADS : FOLLOWS)
        };
        check() };
        run Broker(0); run Broker(1); run Broker(2); run MetadataLeader()
    }
}
