/* Loops over the calls of a group of `wf.map`: the order of its rows, where they lie, marking calls as run. See
   wayfare/batch/run/call_loops.py, which does the same in Python. */

/* -- the order of rows ---------------------------------------------------------------------------------------------- */

typedef struct { Py_ssize_t depth; PyObject *call; } Ranked;
enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* Sort a group, and leave equal ones in their order. Digit by digit: depths are whole numbers from a small range. */
static int sort_by_depth(PyObject *group) {
    Py_ssize_t n = PyList_GET_SIZE(group), least = PY_SSIZE_T_MAX, most = PY_SSIZE_T_MIN, sorted = 1;
    Ranked *all = PyMem_Malloc(2 * n * sizeof(Ranked)), *from = all, *to = all + n;
    if (all == NULL) { PyErr_NoMemory(); return -1; }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *call = PyList_GET_ITEM(group, i);
        all[i] = (Ranked){PyLong_AsSsize_t(AT(call, C.depth)), call};
        if (all[i].depth < least) least = all[i].depth;
        if (all[i].depth < most) sorted = 0;
        else most = all[i].depth;
    }
    size_t range = (size_t)most - (size_t)least;
    for (int shift = 0; !sorted && shift < 64 && range >> shift != 0; shift += DIGIT_BITS) {
        Py_ssize_t counts[DIGITS] = {0}, before = 0;
        for (Py_ssize_t i = 0; i < n; i++) counts[((size_t)from[i].depth - (size_t)least) >> shift & (DIGITS - 1)]++;
        for (int d = 0; d < DIGITS; d++) { Py_ssize_t count = counts[d]; counts[d] = before; before += count; }
        for (Py_ssize_t i = 0; i < n; i++) to[counts[((size_t)from[i].depth - (size_t)least) >> shift & (DIGITS - 1)]++] = from[i];
        Ranked *swapped = from;
        from = to;
        to = swapped;
    }
    for (Py_ssize_t i = 0; !sorted && i < n; i++) PyList_SET_ITEM(group, i, from[i].call);  /* the same references, moved */
    PyMem_Free(all);
    return PyErr_Occurred() ? -1 : 0;
}

static inline int rank_row(PyObject *row, Py_ssize_t *rank) {
    if (Py_TYPE(row) != ValueType || !IS_A(AT(row, W.call), CallType)) return 0;
    return set_depth(AT(row, W.call), --*rank);
}

/* order_rows(groups): sort the calls of each group by who reads them next. */
static PyObject *order_rows(PyObject *self, PyObject *groups) {
    if (!PyList_Check(groups)) { PyErr_SetString(PyExc_TypeError, "a list of groups is wanted"); return NULL; }
    for (Py_ssize_t g = 0; g < PyList_GET_SIZE(groups); g++) {
        PyObject *group = PyList_GET_ITEM(groups, g);
        if (!are_calls(group)) return NULL;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(group); i++)
            if (set_depth(PyList_GET_ITEM(group, i), 0) < 0) return NULL;
    }
    Py_ssize_t rank = 0;
    for (Py_ssize_t g = PyList_GET_SIZE(groups) - 1; g >= 0; g--) {
        PyObject *group = PyList_GET_ITEM(groups, g);
        Py_ssize_t n = PyList_GET_SIZE(group);
        int is_steps = Py_TYPE(group) == StepsType;
        if (n > 1 && !is_steps && sort_by_depth(group) < 0) return NULL;
        if (Py_TYPE(group) == StackCallsType) {
            for (Py_ssize_t i = n - 1; i >= 0; i--) {
                PyObject *call = PyList_GET_ITEM(group, i);
                for (Py_ssize_t k = inputs_of(call) - 1; k >= 0; k--)
                    if (rank_row(input_of(call, k), &rank) < 0) return NULL;
            }
            continue;
        }
        Py_ssize_t columns = n > 0 ? PY_SSIZE_T_MAX : 0;
        for (Py_ssize_t i = 0; i < n; i++) {
            Py_ssize_t size = inputs_of(PyList_GET_ITEM(group, i));
            if (size < columns) columns = size;
        }
        if (is_steps && columns > 1) columns = 1;
        PyObject *first_end = NULL, *last_end = NULL;
        for (Py_ssize_t k = columns - 1; k >= 0; k--) {
            PyObject *first = input_of(PyList_GET_ITEM(group, 0), k);
            PyObject *last = input_of(PyList_GET_ITEM(group, n - 1), k);
            if (Py_TYPE(first) == ValueType && Py_TYPE(last) == ValueType) {
                /* Probably two outputs of the same calls, judged by the first and the last: they are ordered already. */
                if (first_end == AT(first, W.call) && last_end == AT(last, W.call)) continue;
                first_end = AT(first, W.call);
                last_end = AT(last, W.call);
            }
            for (Py_ssize_t i = n - 1; i >= 0; i--)
                if (rank_row(input_of(PyList_GET_ITEM(group, i), k), &rank) < 0) return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* -- running a group ------------------------------------------------------------------------------------------------ */

/* columns_of(calls): for each input, its rows. */
static PyObject *columns_of(PyObject *self, PyObject *calls) {
    if (!are_calls(calls)) return NULL;
    Py_ssize_t n = PyList_GET_SIZE(calls), count = n == 0 ? 0 : inputs_of(PyList_GET_ITEM(calls, 0));
    for (Py_ssize_t i = 0; i < n; i++)
        if (inputs_of(PyList_GET_ITEM(calls, i)) != count) {
            PyErr_SetString(PyExc_ValueError, "calls of one signature have different numbers of inputs");
            return NULL;
        }
    PyObject *columns = PyList_New(count);
    for (Py_ssize_t k = 0; columns != NULL && k < count; k++) {
        PyObject *column = PyTuple_New(n);
        if (column == NULL) { Py_CLEAR(columns); break; }
        for (Py_ssize_t i = 0; i < n; i++)
            PyTuple_SET_ITEM(column, i, Py_NewRef(input_of(PyList_GET_ITEM(calls, i), k)));
        PyList_SET_ITEM(columns, k, column);
    }
    return columns;
}

static int is_int64(PyObject *array) {
    return IS_ARRAY(array) && PyArray_TYPE(ARRAY(array)) == NPY_INT64 && PyArray_IS_C_CONTIGUOUS(ARRAY(array));
}

static int by_number(const void *a, const void *b) {
    int one = *(const int *)a, other = *(const int *)b;
    return one < other ? -1 : one > other;
}

/* The different numbers (but negative ones) of rows, in order. */
static PyObject *numbers_of(const npy_int64 *id, npy_intp n, const npy_int32 *outputs) {
    int few[256], *all = n <= 256 ? few : PyMem_Malloc(n * sizeof(int)), count = 0, kept = 0;
    if (all == NULL) return PyErr_NoMemory();
    for (npy_intp i = 0; i < n; i++) {
        int number = outputs[id[i]];
        if (number >= 0 && (count == 0 || all[count - 1] != number)) all[count++] = number;
    }
    qsort(all, count, sizeof(int), by_number);
    for (int i = 0; i < count; i++) if (i == 0 || all[i] != all[i - 1]) all[kept++] = all[i];
    PyObject *made = PyTuple_New(kept);
    for (int i = 0; made != NULL && i < kept; i++) PyTuple_SET_ITEM(made, i, PyLong_FromLong(all[i]));
    if (all != few) PyMem_Free(all);
    return made;
}

/* rows_of(values, addresses, outputs): (ids of the rows, their offsets or None, how many need a gradient, the distance
   between two ids if that is always the same and the offsets are equal, else 0; addresses of the rows and the outputs they
   belong to, if they are not at such a distance); None if not all are values of calls that have run. */
static PyObject *rows_of(PyObject *self, PyObject *args) {
    PyObject *values, *table, *outputs;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &values, &PyArray_Type, &table, &PyArray_Type, &outputs)) return NULL;
    npy_intp n = PyTuple_GET_SIZE(values), rows = PyArray_SIZE(ARRAY(table));
    if (!is_int64(table) || PyArray_TYPE(ARRAY(outputs)) != NPY_INT32 || !PyArray_IS_C_CONTIGUOUS(ARRAY(outputs))
        || PyArray_SIZE(ARRAY(outputs)) != rows) { PyErr_SetString(PyExc_TypeError, "tables of addresses and outputs are wanted"); return NULL; }
    for (npy_intp i = 0; i < n; i++) {
        PyObject *value = PyTuple_GET_ITEM(values, i);
        if (Py_TYPE(value) != ValueType || !IS_A(AT(value, W.call), CallType) || AT(AT(value, W.call), C.row_id) == NULL
            || AT(value, W.number) == NULL || AT(value, W.offset) == NULL) Py_RETURN_NONE;
    }
    PyObject *ids = PyArray_SimpleNew(1, &n, NPY_INT64), *offsets = PyArray_SimpleNew(1, &n, NPY_INT64), *made = NULL;
    PyObject *found = NULL, *numbers = NULL;
    if (ids == NULL || offsets == NULL) goto end;
    npy_int64 *id = PyArray_DATA(ARRAY(ids)), *offset = PyArray_DATA(ARRAY(offsets)), *at = PyArray_DATA(ARRAY(table));
    Py_ssize_t needed = 0, moved = 0, distance = n > 1 ? -1 : 0;
    for (npy_intp i = 0; i < n; i++) {
        PyObject *value = PyTuple_GET_ITEM(values, i);
        id[i] = PyLong_AsLongLong(AT(AT(value, W.call), C.row_id)) + PyLong_AsLongLong(AT(value, W.number));
        offset[i] = PyLong_AsLongLong(AT(value, W.offset));
        needed += AT(value, W.needs_grad) == Py_True;
        moved |= offset[i] != 0;
        if (i > 0 && (offset[i] != offset[0] || (i > 1 && id[i] - id[i - 1] != distance))) distance = 0;
        else if (i == 1) distance = id[1] - id[0];
        if (!PyErr_Occurred() && (id[i] < 0 || id[i] >= rows)) PyErr_SetString(PyExc_IndexError, "there is no such row");
        if (PyErr_Occurred()) goto end;
    }
    if (distance < 0) distance = 0;
    if (distance == 0) {
        if ((found = PyArray_SimpleNew(1, &n, NPY_INT64)) == NULL) goto end;
        npy_int64 *address = PyArray_DATA(ARRAY(found));
        for (npy_intp i = 0; i < n; i++) address[i] = at[id[i]] + offset[i];
        if (needed == n && (numbers = numbers_of(id, n, PyArray_DATA(ARRAY(outputs)))) == NULL) goto end;
    }
    made = Py_BuildValue("OOnnOO", ids, moved ? offsets : Py_None, needed, distance, found ? found : Py_None, numbers ? numbers : Py_None);
end:
    Py_XDECREF(ids);
    Py_XDECREF(offsets);
    Py_XDECREF(found);
    Py_XDECREF(numbers);
    return made;
}

/* place_rows(addresses, start, step, array): the addresses of the rows of an array, from `start` on, `step` apart. */
static PyObject *place_rows(PyObject *self, PyObject *args) {
    PyObject *table, *array;
    Py_ssize_t start, step;
    if (!PyArg_ParseTuple(args, "O!nnO!", &PyArray_Type, &table, &start, &step, &PyArray_Type, &array)) return NULL;
    npy_intp n = PyArray_NDIM(ARRAY(array)) == 0 ? 0 : PyArray_DIM(ARRAY(array), 0);
    if (!is_int64(table) || start < 0 || step < 1 || (n > 0 && start + (n - 1) * step >= PyArray_SIZE(ARRAY(table)))) {
        PyErr_SetString(PyExc_IndexError, "the table of addresses is too short");
        return NULL;
    }
    npy_int64 *at = (npy_int64 *)PyArray_DATA(ARRAY(table)) + start, data = (npy_int64)PyArray_DATA(ARRAY(array));
    npy_intp stride = n > 1 ? PyArray_STRIDE(ARRAY(array), 0) : 0;
    for (npy_intp i = 0; i < n; i++) at[i * step] = data + i * stride;
    Py_RETURN_NONE;
}

/* References to those of the stand-ins of a call that somebody holds, besides the call itself, are added to `live`. What is
   recorded in Python has weak references to them. */
static int note_held(PyObject *handles, PyObject *live) {
    int all = Py_REFCNT(handles) > 1;  /* somebody holds the tuple that the call returned */
    if (all) collect(handles);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(handles); k++) {
        PyObject *held = PyTuple_GET_ITEM(handles, k), *reference;
        if (PyWeakref_CheckRef(held)) {
            if (PyWeakref_GET_OBJECT(held) != Py_None && PyList_Append(live, held) < 0) return -1;
        } else if (all || Py_REFCNT(held) > 1) {
            reference = PyWeakref_NewRef(held, NULL);
            if (reference == NULL || PyList_Append(live, reference) < 0) { Py_XDECREF(reference); return -1; }
            Py_DECREF(reference);
        }
    }
    return 0;
}

/* mark_as_run(calls, group, start, step, live): the calls have run, as rows of a group from `start` on; references to
   tensors that are still held are added to `live`. */
static PyObject *mark_as_run(PyObject *self, PyObject *args) {
    PyObject *calls, *group, *live;
    Py_ssize_t start, step;
    if (!PyArg_ParseTuple(args, "OOnnO!", &calls, &group, &start, &step, &PyList_Type, &live) || !are_calls(calls)) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i), *handles = AT(call, C.handles);
        if (!IS_A(handles, &PyTuple_Type)) continue;
        if (note_held(handles, live) < 0) return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(calls); i++) {
        PyObject *call = PyList_GET_ITEM(calls, i), *id = PyLong_FromSsize_t(start + i * step);
        if (id == NULL) return NULL;
        replace(call, C.group, Py_NewRef(group));
        replace(call, C.row_id, id);
        replace(call, C.inputs, Py_NewRef(EMPTY));
        replace(call, C.handles, Py_NewRef(Py_None));
    }
    Py_RETURN_NONE;
}
