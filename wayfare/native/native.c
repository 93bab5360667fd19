/* The parts of eager ops, of the backward pass and of recording in `wf.map` that run once for every small op, in C.

   The classes stay Python's own (Tensor, Node, Op, View: all with __slots__). Their slots are read and written at the
   offsets that their member descriptors state. Every function here stands in front of a Python function that does the
   same: whatever is not the usual case is handed to that one before anything has happened.

   There is no state that two threads or two greenlets could share, but what is set once at import. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#if PY_VERSION_HEX < 0x030C0000
/* Frames as the interpreter has them: to ask for a frame object would make one for every function of the user. */
#define Py_BUILD_CORE_MODULE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE_MODULE
#endif
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#define AT(o, offset) (*(PyObject **)((char *)(o) + (offset)))
#define ARRAY(o) ((PyArrayObject *)(o))
/* Anybody may delete an attribute or set it to something else: what a slot holds is looked at before it is used. */
#define IS_A(o, type) ((o) != NULL && Py_TYPE(o) == (type))
/* bfloat16 is the only dtype that NumPy does not have itself. */
#define IS_BFLOAT16(a) PyTypeNum_ISUSERDEF(PyArray_TYPE(a))
#define IS_ARRAY(o) ((o) != NULL && PyArray_CheckExact(o))
/* Into an empty slot; takes over the reference. */
#define PUT(o, offset, value) (AT(o, offset) = (value))
static inline void replace(PyObject *o, Py_ssize_t offset, PyObject *value) {
    PyObject *old = AT(o, offset);
    AT(o, offset) = value;
    Py_XDECREF(old);
}

enum { DROP, SPEC, VALUE };
enum { MOST_DIMS = 8, MOST_INPUTS = 3 };

/* What `set_up` is given, and keeps for ever. */
static PyTypeObject *TensorType, *NodeType, *OpType, *ViewType, *SpecType, *RowsType;
static PyObject *INSIDE, *UNUSUAL, *STATE, *NO_GRAD, *CLOCK, *LATEST, *NO_ATTRS, *OF_NUMPY, *REGISTRY, *CONSTANT, *CALL;
static PyArray_Descr *F32, *F64;
static PyObject *MODE_NAME;

static struct { Py_ssize_t array, edge, extras, grad, view, requires_grad, handle; } T;
static struct { Py_ssize_t op, attrs, edges, kept, number, shape, dtype, code, offset, extras; } N;
static struct { Py_ssize_t name, forward, vjp, view, broadcasts, large_from, large_vjp_from, moves, small_vjp, native; } O;
static struct { Py_ssize_t op, attrs, before, base, base_edge; } V;
static struct { Py_ssize_t shape, dtype; } S;

/* What a slot holds, borrowed; NULL with the AttributeError that Python has for an empty one. */
static PyObject *filled(PyObject *o, Py_ssize_t offset, const char *name) {
    PyObject *found = AT(o, offset);
    if (found == NULL) PyErr_Format(PyExc_AttributeError, "'%s' object has no attribute '%s'", Py_TYPE(o)->tp_name, name);
    return found;
}

static Py_ssize_t slot_of(PyTypeObject *type, const char *name) {
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL) return -1;
    Py_ssize_t offset = -1;
    if (Py_TYPE(found) == &PyMemberDescr_Type) offset = ((PyMemberDescrObject *)found)->d_member->offset;
    else PyErr_Format(PyExc_TypeError, "%s has no slot %s", type->tp_name, name);
    Py_DECREF(found);
    return offset;
}

#include "launches.h"
#include "plans.h"

/* The user's line: code object and offset of the innermost frame outside the library. */
#if PY_VERSION_HEX < 0x030C0000
static int note_line(PyObject *o, Py_ssize_t code_at, Py_ssize_t offset_at) {
    PyObject *code = Py_None, *offset = NULL;
    _PyInterpreterFrame *frame = PyThreadState_Get()->cframe->current_frame;
    for (; frame != NULL; frame = frame->previous) {
        if (_PyFrame_IsIncomplete(frame)) continue;
        PyObject *file = frame->f_code->co_filename, *inside = PyDict_GetItemWithError(INSIDE, file);
        if (inside == NULL) {
            inside = PyErr_Occurred() ? NULL : PyObject_GetItem(INSIDE, file);
            if (inside == NULL) return -1;
            Py_DECREF(inside);  /* the table holds it */
        }
        if (inside == Py_True) continue;
        code = (PyObject *)frame->f_code;
        offset = PyLong_FromLong(_PyInterpreterFrame_LASTI(frame) * sizeof(_Py_CODEUNIT));
        break;
    }
    if (frame == NULL) offset = PyLong_FromLong(0);
    PUT(o, code_at, Py_NewRef(code));
    PUT(o, offset_at, offset);
    return offset == NULL ? -1 : 0;
}
#else
static int note_line(PyObject *o, Py_ssize_t code_at, Py_ssize_t offset_at) {
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyObject *inside = PyDict_GetItemWithError(INSIDE, code->co_filename);
        if (inside == NULL) {
            inside = PyErr_Occurred() ? NULL : PyObject_GetItem(INSIDE, code->co_filename);
            if (inside == NULL) { Py_DECREF(code); Py_DECREF(frame); return -1; }
            Py_DECREF(inside);  /* the table holds it */
        }
        if (inside == Py_True) {
            PyFrameObject *back = PyFrame_GetBack(frame);
            Py_DECREF(code);
            Py_SETREF(frame, back);
            continue;
        }
        PyObject *offset = PyLong_FromLong(PyFrame_GetLasti(frame));
        Py_DECREF(frame);
        PUT(o, code_at, (PyObject *)code);
        PUT(o, offset_at, offset);
        return offset == NULL ? -1 : 0;
    }
    PUT(o, code_at, Py_NewRef(Py_None));
    PUT(o, offset_at, PyLong_FromLong(0));
    return 0;
}
#endif

/* The mode of this thread: 0 the ordinary one, 1 no_grad, 2 any other one (which Python must see to), -1 an error. */
static inline int mode_now(void) {
    if (PySet_GET_SIZE(UNUSUAL) == 0) return 0;
    PyObject *mode = PyObject_GetAttr(STATE, MODE_NAME);
    if (mode == NULL) return -1;
    int found = mode == Py_None ? 0 : mode == NO_GRAD ? 1 : 2;
    Py_DECREF(mode);
    return found;
}

static PyObject *shape_of(PyArrayObject *x) {
    PyObject *shape = PyTuple_New(PyArray_NDIM(x));
    if (shape == NULL) return NULL;
    for (int i = 0; i < PyArray_NDIM(x); i++) {
        PyObject *size = PyLong_FromSsize_t(PyArray_DIM(x, i));
        if (size == NULL) { Py_DECREF(shape); return NULL; }
        PyTuple_SET_ITEM(shape, i, size);
    }
    return shape;
}

/* The dtype and the shape of any array, of NumPy or of a device. */
static inline PyObject *dtype_of(PyObject *x) {
    return IS_ARRAY(x) ? Py_NewRef((PyObject *)PyArray_DESCR(ARRAY(x))) : PyObject_GetAttr(x, DTYPE_NAME);
}
static inline PyObject *any_shape(PyObject *x) {
    return IS_ARRAY(x) ? shape_of(ARRAY(x)) : PyObject_GetAttr(x, SHAPE_NAME);
}

static PyObject *spec_of(PyObject *x) {
    PyObject *numpys = dtype_of(x), *dtype = numpys == NULL ? NULL : PyDict_GetItemWithError(OF_NUMPY, numpys);
    if (dtype == NULL && numpys != NULL && !PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, numpys);
    Py_XDECREF(numpys);
    if (dtype == NULL) return NULL;
    PyObject *shape = any_shape(x), *spec = shape == NULL ? NULL : SpecType->tp_alloc(SpecType, 0);
    if (spec == NULL) { Py_XDECREF(shape); return NULL; }
    PUT(spec, S.shape, shape);
    PUT(spec, S.dtype, Py_NewRef(dtype));
    return spec;
}

static inline int same_shape(PyArrayObject *a, PyArrayObject *b) {
    return PyArray_NDIM(a) == PyArray_NDIM(b)
        && memcmp(PyArray_DIMS(a), PyArray_DIMS(b), sizeof(npy_intp) * PyArray_NDIM(a)) == 0;
}

static inline PyObject *new_array(PyArray_Descr *descr, int ndim, npy_intp const *dims) {
    Py_INCREF(descr);
    return PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, NULL, NULL, 0, NULL);
}

#include "kernels.h"
#include "eager.h"
#include "device.h"
#include "views.h"
#include "backward.h"
#include "objects.h"
#include "guards.h"
#include "record.h"
#include "lazy.h"
#include "calls.h"
#include "loops.h"
#include "rows.h"
#include "row_commands.h"

static int slots_of_classes(void) {
#define SLOT(table, type, field, name) if ((table.field = slot_of(type, name)) < 0) return -1
    SLOT(T, TensorType, array, "_array"); SLOT(T, TensorType, edge, "_edge"); SLOT(T, TensorType, extras, "_extras");
    SLOT(T, TensorType, grad, "_grad"); SLOT(T, TensorType, view, "_view"); SLOT(T, TensorType, handle, "_handle");
    SLOT(T, TensorType, requires_grad, "_requires_grad");
    SLOT(N, NodeType, op, "op"); SLOT(N, NodeType, attrs, "attrs"); SLOT(N, NodeType, edges, "edges");
    SLOT(N, NodeType, kept, "kept"); SLOT(N, NodeType, number, "number"); SLOT(N, NodeType, shape, "shape");
    SLOT(N, NodeType, dtype, "dtype"); SLOT(N, NodeType, code, "code"); SLOT(N, NodeType, offset, "offset");
    SLOT(N, NodeType, extras, "extras");
    SLOT(O, OpType, name, "name"); SLOT(O, OpType, forward, "forward"); SLOT(O, OpType, vjp, "vjp"); SLOT(O, OpType, view, "view");
    SLOT(O, OpType, broadcasts, "broadcasts"); SLOT(O, OpType, large_from, "large_from");
    SLOT(O, OpType, large_vjp_from, "large_vjp_from"); SLOT(O, OpType, moves, "moves");
    SLOT(O, OpType, small_vjp, "small_vjp"); SLOT(O, OpType, native, "native");
    SLOT(V, ViewType, op, "_op"); SLOT(V, ViewType, attrs, "_attrs"); SLOT(V, ViewType, before, "_before");
    SLOT(V, ViewType, base, "base"); SLOT(V, ViewType, base_edge, "base_edge");
    SLOT(S, SpecType, shape, "shape"); SLOT(S, SpecType, dtype, "dtype");
    return 0;
}

/* set_up(Tensor, Node, Op, View, Spec, INSIDE, UNUSUAL, STATE, NO_GRAD, clock, latest_write, NO_ATTRS, OF_NUMPY,
   REGISTRY, constant, call): the classes and tables of the package. */
static PyObject *set_up(PyObject *self, PyObject *args) {
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOOOOO", &TensorType, &NodeType, &OpType, &ViewType, &SpecType, &INSIDE,
                          &UNUSUAL, &STATE, &NO_GRAD, &CLOCK, &LATEST, &NO_ATTRS, &OF_NUMPY, &REGISTRY, &CONSTANT,
                          &CALL)) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) Py_INCREF(PyTuple_GET_ITEM(args, i));
    if (slots_of_classes() < 0) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_up", set_up, METH_VARARGS, "Tell the module the classes and tables of the package; called once."},
    {"set_up_device", set_up_device, METH_VARARGS, "The class of arrays of a device, and its backend."},
    {"set_up_launches", set_up_launches, METH_O, "The counters."},
    {"set_up_backward", set_up_backward, METH_O, "The class Rows."},
    {"set_up_recording", set_up_recording, METH_VARARGS, "The classes of wayfare/batch."},
    {"set_up_loops", set_up_loops, METH_VARARGS, "The classes Call, Value, Steps, StackCalls and Signature."},
    {"is_within", is_within, METH_VARARGS, "Whether a frame of an example is within a range of its code."},
    {"by_depth", by_depth, METH_O, "Groups of calls by depth."},
    {"one_after_another", one_after_another, METH_O, "Groups of calls by signature."},
    {"set_class", set_class, METH_VARARGS, "Make a tensor a stand-in, or a stand-in a tensor."},
    {"order_rows", order_rows, METH_O, "Sort the calls of groups by who reads them."},
    {"columns_of", columns_of, METH_O, "The inputs of calls, column by column."},
    {"rows_of", rows_of, METH_VARARGS, "Where the rows of values lie."},
    {"place_rows", place_rows, METH_VARARGS, "The addresses of the rows of an array."},
    {"are_finite", (PyCFunction)(void (*)(void))are_finite, METH_FASTCALL, "Whether some rows of an array are finite."},
    {"how_many", how_many, METH_O, "Whether no flag is set, or some, or all."},
    {"reads_of", reads_of, METH_VARARGS, "The depths that calls read."},
    {"steps_of", steps_of, METH_VARARGS, "The calls of a chain, step by step."},
    {"take_needed", take_needed, METH_VARARGS, "Take the calls that must run out of a list of pending calls."},
    {"mark_as_run", mark_as_run, METH_VARARGS, "Mark the calls of a group as run."},
    {"run_rows", (PyCFunction)(void (*)(void))run_rows, METH_FASTCALL, "Run a command list on the rows of a group."},
    {"add_rows", (PyCFunction)(void (*)(void))add_rows, METH_FASTCALL, "Add rows to rows given by id."},
    {"backward", (PyCFunction)backward, METH_VARARGS, "Run a backward pass without hooks, captures and watchers."},
    {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "wayfare.core._native", NULL, -1, functions};

PyMODINIT_FUNC PyInit__native(void) {
    import_array();
    import_umath();
    PyObject *m = PyModule_Create(&module);
    F32 = PyArray_DescrFromType(NPY_FLOAT32);
    F64 = PyArray_DescrFromType(NPY_FLOAT64);
    MODE_NAME = PyUnicode_InternFromString("mode");
    if (m == NULL || F32 == NULL || F64 == NULL || MODE_NAME == NULL) return NULL;
    if (PyModule_AddStringConstant(m, "version", WAYFARE_VERSION) < 0) return NULL;
    if (init_eager(m) < 0 || init_device(m) < 0 || init_views(m) < 0 || init_record(m) < 0 || init_calls(m) < 0 || init_guards(m) < 0) return NULL;
    return m;
}
