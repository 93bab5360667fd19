/* Loops over the pending calls of `wf.map`: which must run, and in which groups. See wayfare/batch/run/call_loops.py, which does the same in Python. */

static PyTypeObject *StepsType, *StackCallsType, *SignatureType;
static Py_ssize_t RAGGED;
static PyObject *EMPTY, *NEEDED, *sDONE;

static int is_true(PyObject *o, PyObject *name) {  /* of an attribute; -1: there is none */
    PyObject *found = PyObject_GetAttr(o, name);
    int is = found == NULL ? -1 : PyObject_IsTrue(found);
    Py_XDECREF(found);
    return is;
}

/* A table from addresses to small numbers. */
typedef struct { void **keys; Py_ssize_t *values; Py_ssize_t size, used; } Numbers;

static Py_ssize_t *place_in(Numbers *t, void *key) {  /* NULL: no memory. A new key has the number -1. */
    if (t->used * 2 >= t->size) {
        Numbers grown = {NULL, NULL, t->size == 0 ? 32 : t->size * 4, 0};
        grown.keys = PyMem_Calloc(grown.size, sizeof(void *));
        grown.values = PyMem_Malloc(grown.size * sizeof(Py_ssize_t));
        if (grown.keys == NULL || grown.values == NULL) { PyMem_Free(grown.keys); PyMem_Free(grown.values); PyErr_NoMemory(); return NULL; }
        for (Py_ssize_t i = 0; i < t->size; i++)
            if (t->keys[i] != NULL) *place_in(&grown, t->keys[i]) = t->values[i];
        PyMem_Free(t->keys);
        PyMem_Free(t->values);
        *t = grown;
    }
    Py_ssize_t at = ((size_t)key >> 4) * 0x9E3779B97F4A7C15ull >> 20 & (t->size - 1);
    while (t->keys[at] != NULL && t->keys[at] != key) at = (at + 1) & (t->size - 1);
    if (t->keys[at] == NULL) { t->keys[at] = key; t->values[at] = -1; t->used++; }
    return &t->values[at];
}
static void free_numbers(Numbers *t) { PyMem_Free(t->keys); PyMem_Free(t->values); }

/* Are these calls as they were recorded, each with a signature and a tuple or list of inputs? Else TypeError. */
static int are_calls_from(PyObject *calls, Py_ssize_t begin) {
    if (!PyList_Check(calls)) { PyErr_SetString(PyExc_TypeError, "a list of calls is wanted"); return 0; }
    for (Py_ssize_t i = begin; i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i);
        if (Py_TYPE(call) != CallType || AT(call, C.signature) == NULL || AT(call, C.inputs) == NULL
            || !(PyTuple_CheckExact(AT(call, C.inputs)) || PyList_CheckExact(AT(call, C.inputs)))) {
            PyErr_SetString(PyExc_TypeError, "a list of calls is wanted");
            return 0;
        }
    }
    return 1;
}

static int are_calls(PyObject *calls) { return are_calls_from(calls, 0); }

/* What a call is scheduled by: the ragged signature that its own is part of, if there is one, else its own; borrowed. */
static inline void *kind_of(PyObject *call) {
    PyObject *signature = AT(call, C.signature);
    if (Py_TYPE(signature) != SignatureType) return signature;
    PyObject *ragged = AT(signature, RAGGED);
    return ragged == NULL || ragged == Py_None ? signature : ragged;
}

static inline Py_ssize_t inputs_of(PyObject *call) { return PySequence_Fast_GET_SIZE(AT(call, C.inputs)); }
static inline PyObject *input_of(PyObject *call, Py_ssize_t k) { return PySequence_Fast_GET_ITEM(AT(call, C.inputs), k); }

/* The call that makes a row, if that is pending; borrowed, or NULL. */
static inline PyObject *producer_of(PyObject *row) {
    if (Py_TYPE(row) != ValueType) return NULL;
    PyObject *call = AT(row, W.call);
    return IS_A(call, CallType) && AT(call, C.group) == Py_None && AT(call, C.depth) != NULL ? call : NULL;
}

static inline int set_depth(PyObject *call, Py_ssize_t depth) {
    PyObject *number = PyLong_FromSsize_t(depth);
    replace(call, C.depth, number);
    return number == NULL ? -1 : 0;
}

static int append_to(PyObject *list, PyObject *call) {  /* `list` may be NULL: no memory */
    return list == NULL ? -1 : PyList_Append(list, call);
}

/* by_depth(calls): groups of one signature and one depth, which is the longest chain of pending calls before them. */
static PyObject *by_depth(PyObject *self, PyObject *calls) {
    if (!are_calls(calls)) return NULL;
    PyObject *levels = PyList_New(0), *groups = NULL;  /* of each depth, the groups in the order of their first calls */
    Numbers *places = NULL;                            /* of each depth: signature to group */
    Py_ssize_t count = 0, room = 0;
    for (Py_ssize_t i = 0; levels != NULL && i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i);
        Py_ssize_t depth = 0;
        for (Py_ssize_t k = 0; k < inputs_of(call); k++) {
            PyObject *producer = producer_of(input_of(call, k));
            if (producer == NULL) continue;
            Py_ssize_t before = PyLong_AsSsize_t(AT(producer, C.depth));
            if (before == -1 && PyErr_Occurred()) goto end;
            if (before > depth) depth = before;
        }
        if (depth > count) { PyErr_SetString(PyExc_ValueError, "a call comes before one that it reads"); goto end; }
        if (depth == count) {
            if (count == room) {
                Py_ssize_t wanted = room == 0 ? 64 : room * 2;
                Numbers *grown = PyMem_Realloc(places, wanted * sizeof(Numbers));
                if (grown == NULL) { PyErr_NoMemory(); goto end; }
                places = grown;
                room = wanted;
            }
            places[count++] = (Numbers){NULL, NULL, 0, 0};
            PyObject *level = PyList_New(0);
            int bad = append_to(levels, level) < 0 || level == NULL;
            Py_XDECREF(level);
            if (bad) goto end;
        }
        if (set_depth(call, depth + 1) < 0) goto end;
        PyObject *level = PyList_GET_ITEM(levels, depth);
        Py_ssize_t *place = place_in(&places[depth], kind_of(call));
        if (place == NULL) goto end;
        if (*place < 0) {
            *place = PyList_GET_SIZE(level);
            PyObject *group = PyList_New(0);
            int bad = group == NULL || PyList_Append(level, group) < 0;
            Py_XDECREF(group);
            if (bad) goto end;
        }
        if (PyList_Append(PyList_GET_ITEM(level, *place), call) < 0) goto end;
    }
    groups = levels == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; groups != NULL && i < count; i++) {
        Py_ssize_t end = PyList_GET_SIZE(groups);
        if (PyList_SetSlice(groups, end, end, PyList_GET_ITEM(levels, i)) < 0) Py_CLEAR(groups);
    }
end:
    for (Py_ssize_t i = 0; i < count; i++) free_numbers(&places[i]);
    PyMem_Free(places);
    Py_XDECREF(levels);
    return groups;
}

/* one_after_another(calls): one signature after another, each in as many groups as its longest chain has calls; an empty
   list where two signatures read each other. */
typedef struct { PyObject *levels; Py_ssize_t first_read, last_read; int done; } OwnCalls;
typedef struct { void *signature; Py_ssize_t next; } Read;

static PyObject *one_after_another(PyObject *self, PyObject *calls) {
    if (!are_calls(calls)) return NULL;
    Numbers places = {NULL, NULL, 0, 0};
    OwnCalls *owns = NULL;
    Read *reads = NULL;
    PyObject *groups = NULL;
    Py_ssize_t count = 0, room = 0, n_reads = 0, read_room = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i);
        void *signature = kind_of(call);
        Py_ssize_t *place = place_in(&places, signature), level = 0;
        if (place == NULL) goto end;
        if (*place < 0) {
            if (count == room) {
                Py_ssize_t wanted = room == 0 ? 64 : room * 2;
                OwnCalls *grown = PyMem_Realloc(owns, wanted * sizeof(OwnCalls));
                if (grown == NULL) { PyErr_NoMemory(); goto end; }
                owns = grown;
                room = wanted;
            }
            *place = count;
            owns[count++] = (OwnCalls){PyList_New(0), -1, -1, 0};
            if (owns[count - 1].levels == NULL) goto end;
        }
        OwnCalls *own = &owns[*place];
        PyObject *last = NULL;
        for (Py_ssize_t k = 0; k < inputs_of(call); k++) {
            PyObject *producer = producer_of(input_of(call, k));
            if (producer == NULL || producer == last) continue;
            last = producer;
            void *read = kind_of(producer);
            if (read == signature) {
                Py_ssize_t before = PyLong_AsSsize_t(AT(producer, C.depth));
                if (before == -1 && PyErr_Occurred()) goto end;
                if (before >= level) level = before + 1;
            } else if (own->last_read < 0 || reads[own->last_read].signature != read) {
                if (n_reads == read_room) {
                    Py_ssize_t wanted = read_room == 0 ? 256 : read_room * 2;
                    Read *grown = PyMem_Realloc(reads, wanted * sizeof(Read));
                    if (grown == NULL) { PyErr_NoMemory(); goto end; }
                    reads = grown;
                    read_room = wanted;
                }
                reads[n_reads] = (Read){read, -1};
                if (own->last_read < 0) own->first_read = n_reads; else reads[own->last_read].next = n_reads;
                own->last_read = n_reads++;
            }
        }
        if (level > PyList_GET_SIZE(own->levels)) { PyErr_SetString(PyExc_ValueError, "a call comes before one that it reads"); goto end; }
        if (set_depth(call, level) < 0) goto end;
        if (level == PyList_GET_SIZE(own->levels)) {
            PyObject *group = PyList_New(0);
            int bad = group == NULL || PyList_Append(own->levels, group) < 0;
            Py_XDECREF(group);
            if (bad) goto end;
        }
        if (PyList_Append(PyList_GET_ITEM(own->levels, level), call) < 0) goto end;
    }
    groups = PyList_New(0);
    for (Py_ssize_t left = count; groups != NULL && left > 0;) {
        Py_ssize_t before = left;
        for (Py_ssize_t i = 0; i < count; i++) {
            int ready = !owns[i].done;
            for (Py_ssize_t r = owns[i].first_read; ready && r >= 0; r = reads[r].next) {
                Py_ssize_t *place = place_in(&places, reads[r].signature);
                if (place == NULL) { Py_CLEAR(groups); goto end; }
                ready = *place >= 0 && owns[*place].done;
            }
            if (!ready) continue;
            Py_ssize_t end = PyList_GET_SIZE(groups);
            if (PyList_SetSlice(groups, end, end, owns[i].levels) < 0) { Py_CLEAR(groups); goto end; }
            owns[i].done = 1;
            left--;
        }
        if (left == before) {
            Py_SETREF(groups, PyList_New(0));
            break;
        }
    }
end:
    for (Py_ssize_t i = 0; i < count; i++) Py_XDECREF(owns[i].levels);
    PyMem_Free(owns);
    PyMem_Free(reads);
    free_numbers(&places);
    return groups;
}

/* reads_of(calls, depth): the depths (but 0) of the pending calls that these calls read; then their own is set. */
static PyObject *reads_of(PyObject *self, PyObject *args) {
    PyObject *calls, *depth, *last = NULL, *found = PySet_New(NULL);
    if (found == NULL || !PyArg_ParseTuple(args, "OO!", &calls, &PyLong_Type, &depth) || !are_calls(calls)) { Py_XDECREF(found); return NULL; }
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i);
        for (Py_ssize_t k = 0; k < inputs_of(call); k++) {
            PyObject *producer = producer_of(input_of(call, k)), *read = producer == NULL ? NULL : AT(producer, C.depth);
            if (read == NULL || read == last || !PyLong_CheckExact(read) || PyLong_AsSsize_t(read) == 0) continue;
            last = read;  /* mostly the same object again */
            if (PySet_Add(found, read) < 0) { Py_CLEAR(found); break; }
        }
    }
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(calls); i++) replace(PyList_GET_ITEM(calls, i), C.depth, Py_NewRef(depth));
    return found;
}

/* Mark a pending call as needed and put it on a stack of calls whose inputs are still to be looked at; counts those marked. */
static int note_needed(PyObject *call, PyObject ***waiting, Py_ssize_t *room, Py_ssize_t *top, Py_ssize_t *found) {
    if (AT(call, C.group) != Py_None || AT(call, C.depth) == NEEDED) return 0;
    if (*top == *room) {
        PyObject **grown = PyMem_Realloc(*waiting, 2 * *room * sizeof(PyObject *));
        if (grown == NULL) { PyErr_NoMemory(); return -1; }
        *waiting = grown;
        *room *= 2;
    }
    replace(call, C.depth, Py_NewRef(NEEDED));
    (*waiting)[(*top)++] = call;
    (*found)++;
    return 0;
}

/* take_needed(calls, looked_at, targets, together): take the calls that must run out of the list, and return them. While it
   runs, `depth` of such a call is NEEDED; of the calls before `looked_at` it is not. */
static PyObject *take_needed(PyObject *self, PyObject *args) {
    PyObject *calls, *targets, *due = NULL, *left = NULL;
    Py_ssize_t begin, room = 64, top = 0, found = 0, recent = 0;
    Numbers kinds = {NULL, NULL, 0, 0};
    int together;
    if (!PyArg_ParseTuple(args, "OnO!p", &calls, &begin, &PyList_Type, &targets, &together) || !PyList_Check(calls)
        || !are_calls(targets)) return NULL;
    Py_ssize_t n = PyList_GET_SIZE(calls);
    begin = begin < 0 ? 0 : begin > n ? n : begin;
    if (!are_calls_from(calls, begin)) return NULL;
    PyObject **waiting = PyMem_Malloc(room * sizeof(PyObject *));
    if (waiting == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = begin; i < n; i++) replace(PyList_GET_ITEM(calls, i), C.depth, Py_NewRef(Py_None));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(targets); i++)
        if (note_needed(PyList_GET_ITEM(targets, i), &waiting, &room, &top, &found) < 0) goto end;
    while (top > 0) {
        PyObject *call = waiting[--top];
        if (AT(call, C.inputs) == NULL || !(PyTuple_CheckExact(AT(call, C.inputs)) || PyList_CheckExact(AT(call, C.inputs)))) continue;
        for (Py_ssize_t k = 0; k < inputs_of(call); k++) {
            PyObject *row = input_of(call, k), *from = Py_TYPE(row) == ValueType ? AT(row, W.call) : NULL;
            if (IS_A(from, CallType) && note_needed(from, &waiting, &room, &top, &found) < 0) goto end;
        }
    }
    for (Py_ssize_t i = begin; i < n; i++) recent += AT(PyList_GET_ITEM(calls, i), C.depth) == NEEDED;
    if (recent < found) {  /* one that could wait before is needed now */
        begin = 0;
        if (!are_calls(calls)) goto end;
    }
    for (Py_ssize_t i = begin; together && i < n; i++) {
        PyObject *call = PyList_GET_ITEM(calls, i);
        if (AT(call, C.depth) != NEEDED) continue;
        Py_ssize_t *place = place_in(&kinds, kind_of(call));
        if (place == NULL) goto end;
        *place = 1;
    }
    due = PyList_New(0);
    left = PyList_New(0);
    for (Py_ssize_t i = begin; due != NULL && left != NULL && i < n; i++) {
        PyObject *call = PyList_GET_ITEM(calls, i);
        int runs = AT(call, C.depth) == NEEDED;
        if (!runs && together) {
            Py_ssize_t *place = place_in(&kinds, kind_of(call));
            if (place == NULL) { Py_CLEAR(due); goto end; }
            PyObject *example = AT(call, C.example);
            runs = *place == 1 && (example == NULL || example == Py_None || is_true(example, sDONE) != 1);
            if (PyErr_Occurred()) { Py_CLEAR(due); goto end; }
            for (Py_ssize_t k = 0; runs && k < inputs_of(call); k++) {
                PyObject *row = input_of(call, k), *from = Py_TYPE(row) == ValueType ? AT(row, W.call) : NULL;
                runs = !IS_A(from, CallType) || AT(from, C.group) != Py_None || AT(from, C.depth) == NEEDED;
            }
            if (runs) replace(call, C.depth, Py_NewRef(NEEDED));
        }
        if (PyList_Append(runs ? due : left, call) < 0) { Py_CLEAR(due); goto end; }
    }
    if (due != NULL && (left == NULL || PyList_SetSlice(calls, begin, n, left) < 0)) Py_CLEAR(due);
end:
    PyMem_Free(waiting);
    free_numbers(&kinds);
    Py_XDECREF(left);
    return due;
}

/* steps_of(levels, signature, outs, needs): the calls of a chain in order of steps, those of the longest sequence first; None
   if the levels are no chain, because a state is read twice, or read as an input, or is not the whole result, or is detached from
   it. `needs`: the results require gradients never (0), if an input of the call does (1), or always (2). */
typedef struct { PyObject *last; Py_ssize_t length, number, rank; } Sequence;

static int longer_first(const void *a, const void *b) {
    const Sequence *one = *(Sequence *const *)a, *other = *(Sequence *const *)b;
    if (one->length != other->length) return one->length > other->length ? -1 : 1;
    return one->number < other->number ? -1 : 1;
}

static int any_needs_grad(PyObject *call) {
    for (Py_ssize_t i = 0; i < inputs_of(call); i++) {
        PyObject *row = input_of(call, i);
        if (Py_TYPE(row) == ValueType ? AT(row, W.needs_grad) == Py_True
                                      : PyObject_TypeCheck(row, TensorType) && AT(row, T.requires_grad) == Py_True) return 1;
    }
    return 0;
}

/* The sequence that a call of a chain goes on with; -1 if it is no such call. */
static Py_ssize_t sequence_of(
    PyObject *call, PyObject *signature, PyObject *outs, int needs, Sequence *sequences, Py_ssize_t count, Py_ssize_t depth
) {
    Py_ssize_t states = PyTuple_GET_SIZE(outs);
    if (inputs_of(call) < states + 1) return -1;
    PyObject *x = input_of(call, 0), *first = input_of(call, 1), *before = Py_TYPE(first) == ValueType ? AT(first, W.call) : NULL;
    if (!IS_A(before, CallType) || AT(before, C.signature) != signature) return -1;
    if (Py_TYPE(x) == ValueType && IS_A(AT(x, W.call), CallType) && AT(AT(x, W.call), C.signature) == signature
        && AT(AT(x, W.call), C.group) == Py_None) return -1;
    for (Py_ssize_t k = 0; k < states; k++) {
        PyObject *state = input_of(call, k + 1);
        if (Py_TYPE(state) != ValueType || AT(state, W.call) != before || AT(state, W.row) != PyTuple_GET_ITEM(outs, k)) return -1;
        if (PyLong_AsSsize_t(AT(state, W.number)) != k || PyLong_AsSsize_t(AT(state, W.offset)) != 0) return -1;
        if (needs && AT(state, W.needs_grad) != Py_True && (needs == 2 || any_needs_grad(before))) return -1;
    }
    /* The scratch space of a call that is not in these levels holds something else. */
    PyObject *number = AT(before, C.depth);
    Py_ssize_t at = number != NULL && PyLong_CheckExact(number) ? PyLong_AsSsize_t(number) : -1;
    if (at < 0 || at >= count) { PyErr_Clear(); return -1; }
    return sequences[at].length == depth && sequences[at].last == before ? at : -1;
}

static PyObject *steps_of(PyObject *self, PyObject *args) {
    PyObject *levels, *signature, *outs, *steps = NULL;
    int needs;
    if (!PyArg_ParseTuple(args, "O!OO!i", &PyList_Type, &levels, &signature, &PyTuple_Type, &outs, &needs)) return NULL;
    Py_ssize_t depths = PyList_GET_SIZE(levels), total = 0, start = 0;
    for (Py_ssize_t d = 0; d < depths; d++) {
        if (!are_calls(PyList_GET_ITEM(levels, d))) return NULL;
        total += PyList_GET_SIZE(PyList_GET_ITEM(levels, d));
    }
    PyObject *first = depths > 0 ? PyList_GET_ITEM(levels, 0) : NULL;
    Py_ssize_t count = first == NULL ? 0 : PyList_GET_SIZE(first);
    Sequence *sequences = PyMem_Malloc((count + 1) * sizeof(Sequence)), **sorted = PyMem_Malloc((count + 1) * sizeof(Sequence *));
    if (sequences == NULL || sorted == NULL) { PyErr_NoMemory(); goto end; }
    for (Py_ssize_t i = 0; i < count; i++) {
        sequences[i] = (Sequence){PyList_GET_ITEM(first, i), 1, i, 0};
        sorted[i] = &sequences[i];
        if (set_depth(sequences[i].last, i) < 0) goto end;
    }
    for (Py_ssize_t d = 1; d < depths; d++) {
        PyObject *level = PyList_GET_ITEM(levels, d);
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(level); i++) {
            PyObject *call = PyList_GET_ITEM(level, i);
            Py_ssize_t at = sequence_of(call, signature, outs, needs, sequences, count, d);
            if (at < 0) { if (!PyErr_Occurred()) steps = Py_NewRef(Py_None); goto end; }
            sequences[at].last = call;
            sequences[at].length++;
            if (set_depth(call, at) < 0) goto end;
        }
    }
    qsort(sorted, count, sizeof(Sequence *), longer_first);
    for (Py_ssize_t i = 0; i < count; i++) sorted[i]->rank = i;
    steps = PyList_New(total);
    for (Py_ssize_t d = 0; steps != NULL && d < depths; d++) {
        PyObject *level = PyList_GET_ITEM(levels, d);
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(level); i++) {
            PyObject *call = PyList_GET_ITEM(level, i);
            /* Each step has the longest sequences, so their ranks are the places in it. */
            PyList_SET_ITEM(steps, start + sequences[PyLong_AsSsize_t(AT(call, C.depth))].rank, Py_NewRef(call));
        }
        start += PyList_GET_SIZE(level);
    }
end:
    PyMem_Free(sequences);
    PyMem_Free(sorted);
    return steps;
}

/* set_up_loops(Call, Value, Steps, StackCalls, Signature) */
static PyObject *set_up_loops(PyObject *self, PyObject *args) {
    if (!PyArg_ParseTuple(args, "OOOOO", &CallType, &ValueType, &StepsType, &StackCallsType, &SignatureType)) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) Py_INCREF(PyTuple_GET_ITEM(args, i));
    EMPTY = PyTuple_New(0);
    NEEDED = PyLong_FromLong(1L << 30);  /* no depth is this object */
    sDONE = PyUnicode_InternFromString("done");
    if (EMPTY == NULL || NEEDED == NULL || sDONE == NULL || slots_of_calls() < 0) return NULL;
    if ((RAGGED = slot_of(SignatureType, "ragged")) < 0) return NULL;
    Py_RETURN_NONE;
}
